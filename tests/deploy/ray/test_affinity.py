"""What a request's digest depends on, and which replicas it is tried at."""

import json
from collections import Counter
from typing import Any

import pytest

from deploy.ray.affinity import FEW, SLACK, digest_of, order, preferred

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
REPLICAS = ["r1", "r2", "r3", "r4"]
MOST = 768


def digest(body: Any, *headers: tuple[bytes, bytes]) -> bytes:
    return digest_of(headers, json.dumps(body).encode())


def said(*contents: Any, **fields: Any) -> dict[str, Any]:
    """A chat whose turns are by user and assistant in turn."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)], **fields}


def test_a_conversation_keeps_its_digest() -> None:
    assert digest(said("who?", "me", "and now?")) == digest(said("who?")) != digest(said("what?"))
    assert digest({"inputs": [{"text": "new"}], "history": [{"inputs": [{"text": "old"}], "text": "a"}]}) == digest(
        {"inputs": [{"text": "old"}]}
    )
    first = [{"role": "user", "content": "old"}]
    assert digest({"input": [*first, {"role": "user", "content": "new"}]}) == digest({"input": first})


@pytest.mark.parametrize(
    "with_question",
    [
        lambda text: said([PICTURE, {"type": "text", "text": text}]),
        lambda text: {"inputs": [{"image": "data:image/png;base64,AAAA"}, {"text": text}]},
        lambda text: said([{"type": "image", "source": {"data": "AAAA"}}, {"type": "text", "text": text}], system=text),
        lambda text: {"input": [{"role": "user", "content": [PICTURE, {"type": "input_text", "text": text}]}]},
    ],
    ids=["openai", "native", "anthropic", "responses"],
)
def test_questions_about_one_picture_share_a_digest(with_question: Any) -> None:
    assert digest(with_question("how many?")) == digest(with_question("which?")) != b""
    other = json.dumps(with_question("how many?")).replace("AAAA", "BBBB").encode()
    assert digest_of((), other) != digest(with_question("how many?"))


def native(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"inputs": [*parts, {"text": "how many?"}]}


def openai(*parts: dict[str, Any]) -> dict[str, Any]:
    return said([*parts, {"type": "text", "text": "which?"}])


def responses(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [*parts, {"type": "input_text", "text": "where?"}]}]}


def base64(data: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


URL = "https://example.com/a.png"


@pytest.mark.parametrize(
    "bodies",
    [
        [
            native({"image": "data:image/png;base64,AAAA"}),
            native({"image": "DATA:image/jpeg;base64,AAAA", "max_pixels": 1000}),
            openai(PICTURE),
            openai({"type": "image_url", "image_url": "data:image/png;base64,AAAA"}),
            openai({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}),
            responses({"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}),
            said([base64("AAAA"), {"type": "text", "text": "who?"}], system="be brief"),
        ],
        [
            native({"image": URL}),
            openai({"type": "image_url", "image_url": {"url": URL}}),
            responses({"type": "input_image", "image_url": URL}),
            said([{"type": "image", "source": {"type": "url", "url": URL}}], system="be brief"),
        ],
        [
            native({"audio": "data:audio/wav;base64,UklG"}),
            openai({"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}),
            openai({"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,UklG"}}),
        ],
        [
            native({"video": ["a.png", "b.png"], "fps": 2}),
            openai({"type": "video_url", "video_url": {"url": ["a.png", "b.png"]}}),
        ],
        [native({"image": "a"}, {"image": "b"}), openai(*({"type": "image_url", "image_url": at} for at in "ab"))],
    ],
    ids=["picture", "address", "sound", "frames", "two"],
)
def test_a_medium_has_one_digest_in_every_dialect(bodies: list[Any]) -> None:
    """Or each dialect has it encoded at another replica."""
    assert len({digest(body) for body in bodies}) == 1
    assert (
        len({digest(bodies[0]), digest(native({"image": "other"})), digest(native({"image": "b"}, {"image": "a"}))})
        == 3
    )


def test_one_key_has_one_digest_by_either_header() -> None:
    body = said("hello")
    assert digest(body, (b"authorization", b"Bearer a")) == digest(body, (b"x-api-key", b"a"))


def test_without_a_picture_the_system_text_counts() -> None:
    system = {"role": "system", "content": "be brief"}
    body = said("hello")
    assert digest({"messages": [system, *body["messages"]]}) != digest(body)
    assert digest({"input": "hello", "instructions": "be brief"}) != digest({"input": "hello"}) != b""
    assert digest({"prompt": "once"}) != digest({"prompt": "twice"})


def test_what_keeps_caches_apart_keeps_digests_apart() -> None:
    body = said("hello")
    keys = [(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b"), (b"x-api-key", b"c")]
    assert len({digest(body, key) for key in keys} | {digest(body), digest({**body, "cache_salt": "s"})}) == 5
    assert digest(body, (b"user-agent", b"x")) == digest(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b'{"messages": 3}',
        b'{"messages": [3]}',
        b'{"messages": []}',
        b"\xff",
        b"[" * 9999,
        b'{"input": [{"url": ' * 400,
    ],
)
def test_what_is_no_chat_has_none(body: bytes) -> None:
    assert digest_of((), body) == b""


def test_digests_stay_where_they_are_when_a_replica_goes() -> None:
    digests = [digest(said(str(i))) for i in range(400)]
    before = {one: order(one, REPLICAS)[0] for one in digests}
    after = {one: order(one, REPLICAS[:-1])[0] for one in digests}
    assert all(after[one] == home for one, home in before.items() if home != "r4")
    assert all(70 < n < 130 for n in Counter(before.values()).values())
    assert len(set(after[one] for one, home in before.items() if home == "r4")) == 3


def test_one_digest_takes_no_more_than_its_share_and_a_quarter() -> None:
    in_flight = Counter(dict.fromkeys(REPLICAS, 0))
    for n in range(1, 401):
        first = preferred(digest(said("the one picture")), in_flight, MOST)[0]
        in_flight[first] += 1
        share = n / len(REPLICAS)
        assert in_flight[first] < max(SLACK * share, share + FEW) + 1
    home = order(digest(said("the one picture")), REPLICAS)[0]
    assert in_flight[home] == max(in_flight.values()) > 100


def test_the_home_comes_first_and_all_others_behind_it() -> None:
    body = digest(said("hello"))
    idle = dict.fromkeys(REPLICAS, 0)
    assert preferred(body, idle, MOST) == order(body, REPLICAS)
    home, *others = order(body, REPLICAS)
    assert preferred(body, {**idle, home: FEW}, MOST) == [home, *others], "so few wait for nobody"
    assert preferred(body, {**idle, home: FEW + 2}, MOST) == [*others, home]
    assert preferred(body, {}, MOST) == []


def test_a_full_replica_comes_after_one_that_has_room() -> None:
    """However few the others have: its server would refuse what is one too many."""
    body = digest(said("hello"))
    home, *others = order(body, REPLICAS)
    in_flight = {**dict.fromkeys(others, 7), home: 8}
    assert preferred(body, in_flight, 9) == [home, *others]
    assert preferred(body, in_flight, 8) == [*others, home]
