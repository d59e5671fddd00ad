"""Bytes stand where URLs stood; what cannot come is a refusal that names the part, and nothing stays counted."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from configs.fetch import FetchConfig
from server.children.fetcher import Fetcher
from server.fetching.messages import CancelFetch, Fetch, FetchedPiece, FetchEnded
from server.http.connection.request_body import RequestBody
from server.metrics import Metrics
from server.request_context import RequestContext
from server.requests.fetched_media import FAILED, MOST_URLS, fetch_media
from server.requests.refusal import Refusal
from server.requests.request import ChatRequest
from tests.server.children.test_fetcher import start_fetcher
from tests.server.doubles import config_of, kill_in, told_in, until
from tests.server.http.exchanges import bodies, body_of
from tests.tables import each_of
from tokenization.chat.parts import FORBIDDEN_URL, Chat, Fetched, Media, RawPrompt, Text, Turn

DATA = "data:image/png;base64,AAAA"


def asked(*media: Media, room: int = 1 << 20) -> tuple[ChatRequest, RequestBody]:
    body = body_of(bodies(room, room), "c")
    chat = Chat(turns=(Turn(role="user", parts=(Text(text="Hi"), *media), plain=False),))
    context = RequestContext(body=body, client="c")
    return ChatRequest(id="chat-1", chat=chat, chat_param="inputs", context=context), body


def picture(source: str, i: int = 1) -> Media:
    return Media(kind="image", source=source, param=f"inputs[{i}].image")


def play(scenario: Callable[[Fetcher], Coroutine[Any, Any, None]], **bounds: Any) -> None:
    async def whole() -> None:
        owner: Any = None
        fetch = FetchConfig(domains=("a.test",), **bounds)
        fetcher = Fetcher(config_of(fetch=fetch), owner, Metrics("tiny", "1.2.3"))
        start_fetcher(fetcher)
        await asyncio.wait_for(scenario(fetcher), 20)
        if fetcher.child is not None and fetcher.child.alive:
            kill_in(fetcher)

    asyncio.run(whole())


def fetches(fetcher: Fetcher) -> dict[str, Fetch]:
    """By the URL."""
    return {said.url: said for said in told_in(fetcher) if isinstance(said, Fetch)}


async def answer(fetcher: Fetcher, url: str, *pieces: bytes, outcome: Any = "whole", why: str = "") -> None:
    await until(lambda: url in fetches(fetcher))
    number = fetches(fetcher)[url].request_id
    for piece in pieces:
        fetcher.on_message(FetchedPiece(request_id=number, data=piece))
    fetcher.on_message(FetchEnded(request_id=number, outcome=outcome, why=why))


def test_each_url_is_fetched_once_and_stands_in_its_place() -> None:
    async def scenario(fetcher: Fetcher) -> None:
        film = Media(kind="video", source="", frames=("HTTP://a.test/1", DATA, "https://a.test/2"), param="inputs[2]")
        request, body = asked(picture("HTTP://a.test/1"), film, picture(DATA, 3), picture("httpx://a.test/", 4))
        task = asyncio.create_task(fetch_media(request, fetcher))
        await answer(fetcher, "https://a.test/2", b"two")
        await answer(fetcher, "HTTP://a.test/1", b"o", b"ne")
        found = await task
        assert isinstance(found.chat, Chat)
        one, frames, inline, other = found.chat.media
        assert isinstance(one.source, Fetched) and one.source.data == b"one"
        assert [frame.data if isinstance(frame, Fetched) else frame for frame in frames.frames] == [
            b"one",
            DATA,
            b"two",
        ]
        assert (inline.source, other.source) == (DATA, "httpx://a.test/") and frames.source == ""
        assert len(fetches(fetcher)) == 2 and body.held == 9
        assert found.id == request.id and one.param == "inputs[1].image"

    play(scenario)


@each_of("chat", [RawPrompt(text="http://a.test/"), Chat(turns=())])
def test_what_names_no_url_is_the_same_request(chat: Any) -> None:
    async def scenario(fetcher: Fetcher) -> None:
        request = ChatRequest(id="chat-1", chat=chat, chat_param="inputs")
        assert await fetch_media(request, fetcher) is request

    play(scenario)


@each_of(
    ("outcome", "why", "kind", "code"),
    [
        ("forbidden", "not from there", "invalid_request", FORBIDDEN_URL),
        ("failed", "it took more than 30 s", "invalid_request", FAILED),
        ("large", "", "invalid_request", "media_too_large"),
        ("internal", "", "internal", "internal"),
    ],
)
def test_what_does_not_come_is_a_refusal_and_ends_the_others(outcome: str, why: str, kind: str, code: str) -> None:
    async def scenario(fetcher: Fetcher) -> None:
        request, _ = asked(picture("http://a.test/1"), picture("http://a.test/2", 2))
        task = asyncio.create_task(fetch_media(request, fetcher))
        await until(lambda: len(fetches(fetcher)) == 2)
        await answer(fetcher, "http://a.test/2", outcome=outcome, why=why)
        with pytest.raises(Refusal) as caught:
            await task
        assert (caught.value.kind, caught.value.code) == (kind, code) and why in caught.value.message
        assert caught.value.param == (None if kind == "internal" else "inputs[2].image")
        other = fetches(fetcher)["http://a.test/1"].request_id
        await until(lambda: CancelFetch(request_id=other) in told_in(fetcher))

    play(scenario)


@each_of("outcome", ["forbidden", "failed", "large"])
def test_a_picture_of_a_list_that_does_not_come_is_told_with_its_number(outcome: str) -> None:
    async def scenario(fetcher: Fetcher) -> None:
        film = Media(kind="video", source="", frames=(DATA, "http://a.test/1", "http://a.test/2"), param="inputs[2]")
        task = asyncio.create_task(fetch_media(asked(film)[0], fetcher))
        await answer(fetcher, "http://a.test/2", outcome=outcome, why="not so")
        with pytest.raises(Refusal, match="^frame 3 of the video: .") as caught:
            await task
        assert caught.value.param == "inputs[2]"

    play(scenario)


@each_of(
    ("room", "most", "kind", "code"),
    [(5, 1 << 20, "overloaded", "bodies_full"), (1 << 20, 5, "invalid_request", "media_too_large")],
)
def test_bytes_count_while_they_come(room: int, most: int, kind: str, code: str) -> None:
    async def scenario(fetcher: Fetcher) -> None:
        request, body = asked(picture("http://a.test/1"), picture("http://a.test/2", 2), room=room)
        task = asyncio.create_task(fetch_media(request, fetcher))
        await answer(fetcher, "http://a.test/1", b"four")
        await until(lambda: body.held == 4)
        number = fetches(fetcher)["http://a.test/2"].request_id
        fetcher.on_message(FetchedPiece(request_id=number, data=b"two"))  # it has not ended
        with pytest.raises(Refusal) as caught:
            await task
        assert (caught.value.kind, caught.value.code) == (kind, code) and body.held == 4
        await until(lambda: CancelFetch(request_id=number) in told_in(fetcher))

    play(scenario, max_bytes=most)


def test_a_client_that_leaves_ends_its_fetches() -> None:
    async def scenario(fetcher: Fetcher) -> None:
        request, _ = asked(picture("http://a.test/1"))
        task = asyncio.create_task(fetch_media(request, fetcher))
        await until(lambda: len(fetches(fetcher)) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: isinstance(told_in(fetcher)[-1], CancelFetch))

    play(scenario)


def test_a_fetcher_that_dies_is_ours() -> None:
    async def scenario(fetcher: Fetcher) -> None:
        request, _ = asked(picture("http://a.test/1"))
        task = asyncio.create_task(fetch_media(request, fetcher))
        await until(lambda: len(fetches(fetcher)) == 1)
        kill_in(fetcher)
        with pytest.raises(Refusal) as caught:
            await task
        assert (caught.value.kind, caught.value.code) == ("unavailable", "fetcher_died")

    play(scenario)


def test_so_many_urls_and_no_more() -> None:
    async def scenario(fetcher: Fetcher) -> None:
        request, _ = asked(*(picture(f"http://a.test/{i}", i) for i in range(MOST_URLS + 1)))
        with pytest.raises(Refusal, match=str(MOST_URLS)) as caught:
            await fetch_media(request, fetcher)
        assert caught.value.param == f"inputs[{MOST_URLS}].image" and not fetches(fetcher)

    play(scenario)


def test_what_stands_twice_counts_twice() -> None:
    """It is fetched once, and goes to the worker as often as it stands there."""

    async def scenario(fetcher: Fetcher) -> None:
        request, body = asked(*[picture("http://a.test/1", i) for i in range(3)], room=29)
        task = asyncio.create_task(fetch_media(request, fetcher))
        await answer(fetcher, "http://a.test/1", b"x" * 9)
        await task
        assert body.held == 27
        request, body = asked(*[picture("http://a.test/2", i) for i in range(3)], room=29)
        task = asyncio.create_task(fetch_media(request, fetcher))
        await answer(fetcher, "http://a.test/2", b"x" * 10)
        with pytest.raises(Refusal) as caught:
            await task
        assert caught.value.code == "bodies_full"

    play(scenario)


def test_a_request_asks_for_no_more_at_once_than_its_client_may() -> None:
    async def scenario(fetcher: Fetcher) -> None:
        request, _ = asked(*[picture(f"http://a.test/{i}", i) for i in range(9)])
        task = asyncio.create_task(fetch_media(request, fetcher))
        await until(lambda: len(fetches(fetcher)) == 2)
        assert fetcher.n_waiting == 0
        for i in range(9):
            await answer(fetcher, f"http://a.test/{i}", b"x")
        await task

    play(scenario, client_at_once=2)


def test_a_url_without_end_is_refused_before_anybody_is_asked() -> None:
    async def scenario(fetcher: Fetcher) -> None:
        request, _ = asked(picture("http://a.test/" + "x" * 9000))
        with pytest.raises(Refusal) as caught:
            await fetch_media(request, fetcher)
        assert (caught.value.param, caught.value.code) == ("inputs[1].image", FORBIDDEN_URL) and not fetches(fetcher)

    play(scenario)
