"""Bodies are counted before they are parsed, and large ones are read beside the loop."""

import asyncio
import json
import random
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from server.http import large_bodies, reading
from server.http.large_bodies import at_once
from server.http.long_texts import Parsed, Raw
from server.http.reading import (
    ENTRIES,
    LARGE_BYTES,
    BodyReader,
    Counts,
    check_counts,
    exact_counts,
    joined,
    loose_counts,
    most_counts,
)
from server.http.routes.chat_completions import read_openai
from server.http.routes.completions import read_completions
from server.requests.refusal import Refusal
from tests.tables import each_of

NO_END = Counts(1 << 40, 1 << 40)
MOST = most_counts(32768)


def counted(value: Any) -> Counts:
    """What a parsed value holds."""
    if not isinstance(value, dict | list):
        return Counts(0, 0)
    inner = [counted(one) for one in (value.values() if isinstance(value, dict) else value)]
    members = 1 + (len(value) if isinstance(value, dict) else 0) + sum(one.members for one in inner)
    return Counts(members, max(0, len(value) - 1) + sum(one.entries for one in inner))


def anything(rng: random.Random, depth: int) -> Any:
    """A value whose texts are full of marks, quotes and backslashes."""
    kind = rng.random() if depth else 0.0
    if kind < 0.3:
        return "".join(rng.choices('a",:[{}\\', k=rng.randrange(12)))
    size = rng.randrange(5)
    if kind < 0.6:
        return [anything(rng, depth - 1) for _ in range(size)]
    return {f"{anything(rng, 0)}{i}": anything(rng, depth - 1) for i in range(size)}


@each_of("size", [1, 2, 3, 7, 1 << 20])
def test_texts_count_nothing_wherever_the_slices_are_cut(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SLICE", size)
    rng = random.Random(7)
    for _ in range(60):
        value = anything(rng, 4)
        raw = json.dumps(value).encode()
        assert at_once(exact_counts(raw, NO_END)) == counted(value)
        loose = at_once(loose_counts(raw))
        assert counted(value).within(loose)


@each_of(
    "raw",
    [
        b'{"history":[' + b'{"inputs":[{"text":""}],"text":""},' * 40_000 + b"{}]}",
        b"[" + b"[]," * 140_000 + b"[]]",
        b'{"a":{' + b'"b":1,' * 140_000 + b'"c":1}}',
        b"[" + b"7," * (ENTRIES + 1) + b"7]",
    ],
)
def test_a_body_of_too_many_values_is_refused(raw: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        at_once(check_counts(raw, MOST))
    assert (caught.value.kind, caught.value.code) == ("invalid_request", "too_many_values")


@each_of(
    "value",
    [
        [{"type": "text", "text": "x"}] * 32768,  # a token each
        {"prompt": [list(range(8000))] * 64},
        {"allowed_token_ids": list(range(1 << 18))},
        {"text": '{"a": [1, 2, {}]},' * 200_000},  # a text full of marks
    ],
)
def test_what_fits_into_a_model_is_taken(value: Any) -> None:
    at_once(check_counts(json.dumps(value).encode(), MOST))


@each_of("before", [0, reading.SLICE - 1, reading.SLICE, 3 * reading.SLICE])
def test_a_number_has_so_many_digits(before: int) -> None:
    """16 MB of whole numbers of 4,300 digits held the interpreter for a third of a second; a text may have as many."""
    text = b'"' + b"1" * before + b'",' + b" " * reading.MOST_SHORT
    at_once(check_counts(b"[" + text + b"1" * reading.MOST_DIGITS + b"]", MOST))
    with pytest.raises(Refusal, match="a number of more than 640 digits"):
        at_once(check_counts(b"[" + text + b"1" * 2 * (reading.MOST_DIGITS + 1) + b"]", MOST))


def test_the_count_ends_where_it_is_too_much() -> None:
    raw = b"[" * (8 << 20)
    assert reading.SLICE <= at_once(exact_counts(raw, Counts(1000, 1000))).members < 2 * reading.SLICE + 2


def test_pieces_are_let_go_of_as_they_are_joined() -> None:
    pieces = [b"ab", b"", b"c", b"def"]
    assert at_once(joined(pieces)) == b"abcdef" and pieces == []


@each_of(
    ("raw", "beside"),
    [
        (b'{"text":"x"}', False),
        (b'"' + b"A" * (LARGE_BYTES - 2) + b'"', False),
        (b'"' + b"A" * LARGE_BYTES + b'"', True),
        (b"[" + b"{}," * 3000 + b"{}]", True),
    ],
)
def test_what_is_large_is_read_in_a_thread(raw: bytes, beside: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(raw), 65536):
            yield raw[start : start + 65536]

    def read(body: Raw) -> int:
        assert body == (Parsed(json.loads(raw)) if beside else raw)
        return threading.get_ident()

    thread, held = asyncio.run(BodyReader().read(pieces(), 32768, read))
    assert held == (len(raw) if len(raw) < 1000 else sys.getsizeof(thread))
    assert (thread != threading.get_ident()) == beside


def test_a_body_whose_client_has_left_is_not_read() -> None:
    """One thread reads all that are large, of one client in the order in which they came."""
    first, let_go = threading.Event(), threading.Event()
    read: list[int] = []

    async def pieces() -> AsyncIterator[bytes]:
        yield b'"' + b"A" * LARGE_BYTES + b'"'

    def slowly(raw: Raw) -> int:
        first.set()
        assert let_go.wait(60) and isinstance(raw, Parsed)
        read.append(len(raw.value))
        return len(raw.value)

    async def scenario() -> None:
        reader = BodyReader()
        stays = asyncio.create_task(reader.read(pieces(), 32768, slowly))
        await asyncio.to_thread(first.wait, 60)
        leaves = asyncio.create_task(reader.read(pieces(), 32768, slowly, lambda: True))
        await asyncio.sleep(0)
        let_go.set()
        assert (await stays)[0] == LARGE_BYTES
        with pytest.raises(ClientDisconnect):
            await leaves
        assert len(read) == 1

    asyncio.run(scenario())


@each_of(
    ("body", "least", "most"),
    [
        ({"prompt": "x" * 200_000}, 200_000, 203_000),
        ({"prompt": ["é" * 100_000] * 2}, 200_000, 204_000),
        ({"prompt": [[7] * 5000] * 10, "max_tokens": 1}, 10 * 5000 * 8, 10 * 5000 * 8 + 7500),
        ({"prompt": "x", "user": "y" * 200_000}, 300, 3000),
        ({"prompt": "x", "bad_words": ["w" * 256] * 128, "user": "y" * 200_000}, 128 * 256, 128 * 320 + 3000),
    ],
)
def test_what_a_request_holds_is_weighed(body: dict[str, Any], least: int, most: int) -> None:
    """Its texts and lists, each once; what was ignored is gone, and so are the blanks."""
    for indent in (None, 100):
        raw = json.dumps(body, indent=indent).encode()

        async def pieces(raw: bytes = raw) -> AsyncIterator[bytes]:
            yield raw

        request, held = asyncio.run(BodyReader().read(pieces(), 32768, lambda raw: read_completions(raw, "r")))
        assert request.requests and least <= held <= most


def test_media_stay_counted_and_blanks_do_not() -> None:
    picture = "data:image/png;base64," + "A" * 200_000
    body = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": picture}}]}]}
    raw = json.dumps(body).encode()

    async def pieces() -> AsyncIterator[bytes]:
        yield raw[:-1]
        yield b" " * (2 << 20) + b"}"

    _, held = asyncio.run(BodyReader().read(pieces(), 32768, lambda raw: read_openai(raw, "r")))
    assert len(picture) <= held <= len(picture) + 3000


def test_what_a_reader_says_in_a_thread_is_heard() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"[" * 3_000_000

    with pytest.raises(Refusal) as caught:
        asyncio.run(BodyReader().read(pieces(), 32768, repr))
    assert caught.value.code == "too_many_values"


def test_another_clients_body_comes_between_the_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the first client's bodies have their escapes; in the order of their coming it would be the last."""
    monkeypatch.setattr(large_bodies, "TURN_SECONDS", 0.0)
    read: list[str] = []

    async def pieces(nbytes: int) -> AsyncIterator[bytes]:
        yield b'"' + b'\\"' * (nbytes // 2) + b'"'

    def named(name: str) -> Callable[[Raw], str]:
        def note(raw: Raw) -> str:
            read.append(name)
            return name

        return note

    async def scenario() -> None:
        reader = BodyReader()
        first = [
            asyncio.create_task(reader.read(pieces(2 * LARGE_BYTES), 32768, named("a"), client="a")) for _ in range(9)
        ]
        await asyncio.sleep(0)
        await reader.read(pieces(LARGE_BYTES + 2), 32768, named("b"), client="b")
        await asyncio.gather(*first)

    asyncio.run(scenario())
    assert len(read) == 10 and read.index("b") <= 4


def test_a_body_that_is_not_valid_says_so_from_the_thread() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"text":"' + b"A" * LARGE_BYTES + b'" 1}'

    with pytest.raises(Refusal, match="the body is not valid JSON: expected `,` or `}`$") as caught:
        asyncio.run(BodyReader().read(pieces(), 32768, reading.body_object))
    assert caught.value.code == "invalid_json"
