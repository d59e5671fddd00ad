"""Long texts of a body are read in slices: the same values, and the same refusals, as of the parser alone."""

import json
import random
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pydantic_core
import pytest

from server.http import long_texts
from server.http.large_bodies import at_once
from server.http.long_texts import LARGE, LESS_LONG, MOST_REST, from_json
from server.requests.refusal import Refusal
from tests.tables import each_of

# Whole characters and torn ones: escapes, surrogate pairs and halves of them, UTF-8 and what is none.
WHOLE = [b"a", b"\\\\", b'\\"', b"\\n", b"\\u0041", b"\\ud83d\\ude00", b"\\/", "é漢😀".encode(), b"A" * 24]
TORN = [b'"', b"\\", b"\\ud83d", b"\\ude00", b"\\u12", b"\\\\ud83d\\\\ude00", b"\xff", b"\x01", b",", b"]", b"{"]


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that every cut falls somewhere else."""
    monkeypatch.setattr(long_texts, "SLICE", 32)
    monkeypatch.setattr(long_texts, "LONG", 20)


def outcome(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except ValueError:
        return ValueError


@each_of("atoms", [WHOLE, WHOLE[1:7], WHOLE + TORN, WHOLE[1:7] + TORN[5:6]])
def test_any_body_is_read_as_the_parser_reads_it(atoms: list[bytes], small_slices: None) -> None:
    draw = random.Random(20261122)
    refused = 0
    for _ in range(400):
        texts = [b"".join(draw.choices(atoms, k=draw.randrange(80))) for _ in range(2)]
        body = b'{"%b":["%b",{"k":[1.5,null,"%b"]}]}' % (texts[0], texts[1], texts[0])
        expected = outcome(partial(pydantic_core.from_json, body, allow_inf_nan=False))
        assert outcome(partial(from_json, bytearray(body))) == expected, body
        refused += expected is ValueError
    assert (refused > 100) == (atoms == WHOLE + TORN)


def test_no_call_into_the_parser_sees_more_than_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    whole = pydantic_core.from_json

    def noted(data: Any, **flags: Any) -> Any:
        sizes.append(len(data))
        return whole(data, **flags)

    monkeypatch.setattr(pydantic_core, "from_json", noted)
    picture, key = "QUJD" * (1 << 20), "\\/" * (1 << 20)
    value = from_json(b'[{"image":"%b"},{"%b":1}]' % (picture.encode(), key.encode()))
    assert value == [{"image": picture}, {key.replace("\\", ""): 1}]
    assert max(sizes) <= long_texts.SLICE + 2 and sum(sizes) < len(picture) + len(key) + 1024


def test_a_fault_beside_a_long_text_has_no_position_that_is_wrong() -> None:
    with pytest.raises(ValueError, match="^expected `,` or `}`$"):
        from_json(b'{"image":"%b" 1}' % (b"A" * 100_000))
    with pytest.raises(ValueError, match="^control character"):
        from_json(b'["%b\n"]' % (b"A" * 100_000))


def test_memory_is_the_text_twice_at_most() -> None:
    body = json.dumps(["A" * (16 << 20)]).encode()
    tracemalloc.start()
    try:
        from_json(body)
        assert tracemalloc.get_traced_memory()[1] < 2.5 * len(body)
    finally:
        tracemalloc.stop()


@each_of("unit", [b"9" * 640, b'"' + b"\\u00e9" * 600 + b'"', b"1", b'""'], ids=len)
def test_what_is_no_long_text_is_bounded(unit: bytes) -> None:
    """Or one call would hold the interpreter for a third of a second."""
    n = MOST_REST // (len(unit) + 1) - 2
    some = b"[" + (unit + b",") * (n - 1) + unit
    assert len(from_json(some + b" " * (MOST_REST - len(some) - 1) + b"]")) == n
    for more in (b"," + unit + b", 1" * 9000, b" " * (MOST_REST - len(some))):
        with pytest.raises(Refusal, match="17 MiB of numbers, names, blanks and short texts"):
            from_json(some + more + b"]")


def test_texts_of_a_large_body_are_short_sooner() -> None:
    texts = [f"{n}é" + "a" * (LESS_LONG + n) for n in range(2 * LARGE // LESS_LONG)]
    raw = json.dumps(texts, ensure_ascii=False).encode()
    assert len(raw) > LARGE and len(at_once(long_texts.long_texts(raw))) == len(texts) and from_json(raw) == texts
