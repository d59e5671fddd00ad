"""Requests with keyed media for tests of the prefix cache, and how two answers are compared."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from PIL import Image

from model.engine.engine import Engine
from model.engine.messages import Generate, SamplingParams, StepDone, TokenEvent
from tests.model.engine.engine_harness import GREEDY, EngineHarness, Parts, picture, with_prepared

SCORED = msgspec.structs.replace(GREEDY, max_tokens=12, logprobs=True, top_logprobs=2)
PICTURE, OTHER = picture(120, 90, 1), picture(120, 90, 2)
CHAT: Parts = ["look at this one first: ", PICTURE, "and say what it is"]


def keyed(generate: Generate, parts: Parts) -> Generate:
    """As a worker will send it: each medium with a key of its bytes."""
    media = [part for part in parts if not isinstance(part, str)]
    sources = [part.tobytes() if isinstance(part, Image.Image) else str(part.source).encode() for part in media]
    found = [
        msgspec.structs.replace(item, key=sha256(source + repr(item.grid).encode()).digest())
        for item, source in zip(generate.prepared.media, sources, strict=True)
    ]
    return with_prepared(generate, media=tuple(found))


def submit(
    harness: EngineHarness, engine: Engine, name: str, parts: Parts, sampling: SamplingParams = SCORED, **fields: Any
) -> Generate:
    generate = msgspec.structs.replace(keyed(harness.prepare(name, parts, sampling), parts), **fields)
    harness.submit(engine, generate)
    return generate


def asked(
    harness: EngineHarness, engine: Engine, name: str, parts: Parts, sampling: SamplingParams = SCORED, **fields: Any
) -> int:
    """To the end. -> tokens of its prompt that were in the cache, by the step that begun it"""
    submit(harness, engine, name, parts, sampling, **fields)
    found = []
    while not engine.idle:
        messages = engine.step()
        found += [m.begun[name] for m in messages if isinstance(m, StepDone) and name in m.begun]
        harness.book(messages)
        engine.check_integrity()
    assert harness.finished[name].reason == "done"
    return found[0]


def assert_same(said: Sequence[TokenEvent], right: Sequence[TokenEvent]) -> None:
    """As far as the answer is clear; log-probabilities to 1e-4."""
    assert [event.index for event in said] == [event.index for event in right]
    unclear: set[int] = set()  # answers: from there on they may go their own way
    for ours, theirs in zip(said, right, strict=True):
        if ours.index in unclear:
            continue
        (_, first), (_, second) = theirs.token.top
        if first - second < 0.01 and ours.token.id != theirs.token.id:
            unclear.add(ours.index)
            continue
        assert ours.token.id == theirs.token.id and ours.finish == theirs.finish
        assert ours.token.logprob == pytest.approx(theirs.token.logprob, abs=1e-4)
    assert len(unclear) * 2 <= len({event.index for event in right})
