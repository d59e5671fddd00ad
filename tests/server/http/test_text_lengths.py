"""Texts that no prompt holds are refused by a count that never finds too many characters."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pydantic_core
import pytest

from server.http import long_texts, text_lengths
from server.http.large_bodies import at_once
from server.http.long_texts import parsed, pieces_of
from server.http.reading import BodyReader, body_object
from server.http.text_lengths import FEWEST, TextLength, fewest_characters, may_be_base64
from server.requests.refusal import Refusal
from tests.server.http.test_long_texts import WHOLE
from tests.tables import each_of

DATA = b"data:image/png;base64,"
HONEST = 'Ein Bär, 熊, "quoted" \\ and 😀\n'


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of a thousand characters is long, and is cut into many slices."""
    monkeypatch.setattr(long_texts, "SLICE", 64)
    monkeypatch.setattr(long_texts, "LONG", 100)
    monkeypatch.setattr(text_lengths, "FEWEST", 0)


def read(text: bytes, most: int) -> Any:
    return at_once(parsed(b'{"text":"%b"}' % text, TextLength(most, 7).check)).value["text"]


@each_of("unit", [*WHOLE, b"x\\\\\\\\\\u0041", b"\\\\u0041", b"\\u00e9", b"\\uac00", b"\\uFFFD", b"\\b"])
def test_the_count_is_never_too_high_and_mostly_exact(unit: bytes) -> None:
    text = unit * 7
    length = len(pydantic_core.from_json(b'"%b"' % text))
    assert fewest_characters(text) == length
    assert fewest_characters(b"\\ud55c" * 8) == 4  # a Korean letter is taken for half of a pair


def test_any_text_is_counted_wherever_it_is_cut(small: None) -> None:
    draw = random.Random(20261129)
    for _ in range(300):
        text = b"".join(draw.choices(WHOLE, k=draw.randrange(200)))
        n = sum(map(fewest_characters, pieces_of(text, (0, len(text)))))
        assert n == len(pydantic_core.from_json(b'"%b"' % text)), text


@each_of("unit", [b'\\"', b"\\u0041", b"\\\\", "é".encode(), b"\\ud83d\\ude00", b"a.", b"\\\\u0041"])
def test_a_text_of_more_characters_than_a_prompt_is_refused(unit: bytes, small: None) -> None:
    length = len(pydantic_core.from_json(b'"%b"' % unit))
    text = unit * (1000 // length)
    assert len(read(text, 1000)) == 1000 // length * length
    with pytest.raises(Refusal, match=r"a text of at least 1\d{3} characters, .* the model's 7 tokens") as caught:
        read(text + unit * 100, 1000)
    assert (caught.value.kind, caught.value.code) == ("invalid_request", "context_length_exceeded")


def test_each_text_is_held_to_it_alone(small: None) -> None:
    """Of 64 prompts each may be as long as the model."""
    prompts = ["a." * 500] * 64
    assert at_once(parsed(json.dumps(prompts).encode(), TextLength(1000, 7).check)).value == prompts


@each_of(
    "text",
    [
        DATA + b"A" * 2000,
        b"DATA:image/svg+xml,%3Csvg%20/%3E" + b"<>" * 1000,
        b"data:image\\/png;base64," + b"AB\\/" * 500,
        b"\\/9j\\/" * 500,  # as PHP writes it
        b"A\\u002B\\u002F\\u003d\\u003D" * 200,  # .NET, Gson
        b"QUJD" * 19 + b"\\r\\n" + b"QUJD" * 500 + b"\\n==",
        b"_-" * 1000,
    ],
)
def test_media_have_bounds_of_their_own(text: bytes, small: None) -> None:
    assert read(text, 1000) == pydantic_core.from_json(b'"%b"' % text)


@each_of("piece", [b'QUJD\\"', b"QUJD\\\\n", b"QU.JD", b"QUJD\\u0041", b"QUJD\\b", "QUJDé".encode(), b"\\u002b\\u002c"])
def test_what_is_no_base64(piece: bytes) -> None:
    assert not may_be_base64(piece * 3)


def test_a_body_is_refused_at_its_long_text_before_anything_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def pieces(text: str) -> AsyncIterator[bytes]:
        yield b'{"prompt":"'
        yield json.dumps(text).encode()[1:-1]
        yield b'"}'

    reader = BodyReader(lambda: FEWEST + 1000)
    honest = HONEST * (FEWEST // len(HONEST))
    found, _ = asyncio.run(reader.read(pieces(honest), 9, body_object))
    assert found == {"prompt": honest}
    monkeypatch.setattr(pydantic_core, "from_json", partial(pytest.fail, "parsed"))
    with pytest.raises(Refusal, match="the model's 9 tokens"):
        asyncio.run(reader.read(pieces(HONEST * (FEWEST // len(HONEST) + 200)), 9, body_object))


@each_of("unit", [b'\\"', b"\\u0041", b"\\\\", b"A", b"\\/", b"\\/\\n"])
def test_no_unit_makes_the_count_expensive(unit: bytes) -> None:
    """Some 20 ms of the processor for a MiB where the bound was set."""
    raw = unit * ((8 << 20) // len(unit))
    began = time.thread_time()
    at_once(TextLength(0, 7).check(raw, (0, len(raw))))
    for piece in pieces_of(raw, (0, len(raw))):
        fewest_characters(piece)
        may_be_base64(piece)
    assert time.thread_time() - began < 8 * 0.3
