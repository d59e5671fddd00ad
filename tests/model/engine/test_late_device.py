"""The engine over a device that runs behind the host: the same answers, and who pays for an encoder that fails late."""

import re
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch

from model import device
from model.engine import engine as engines
from model.engine.engine import Engine
from model.engine.messages import SamplingParams, StepDone
from model.net.multimodal import MultimodalLM
from model.ops.torch_ops import TorchOps
from tests.model.engine.engine_harness import GREEDY, EngineHarness, Parts, engine_at, picture
from tests.model.staging.late import Late, _Pending
from tests.tables import each_of

pytestmark = pytest.mark.network

PICTURE: Parts = ["look: ", picture(120, 90, 1), "what is in this image?"]
TWO: Parts = [picture(60, 70, 2), "and", picture(90, 60, 3), "describe both of them, one two three four five"]
TEXT: Parts = ["one two three"]
DRAWN = SamplingParams(max_tokens=12, temperature=0.9, top_p=0.8, seed=5, repetition_penalty=1.2, logprobs=True)
REFUSED = "call aclnnMatmul failed, error code is 561002"
BROKEN = (
    "ACL stream synchronize failed, error code:507015",
    "The Inner error is reported as above. The process exits for this inner error, and the current working operator "
    "name is aclnnMatmul.",
    "call aclnnMatmul failed, error code is 500002",
    "FORCE STOP",
)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Late:
    """What engines that are made from now on run on."""
    streams = Late()
    monkeypatch.setattr(engines, "open_streams", lambda device: streams)
    return streams


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a layer norm says in the place of its work: of what is appended here, each once."""
    said, real = list[str](), TorchOps.layer_norm

    def layer_norm(self: TorchOps, *given: Any) -> Any:
        if said:
            raise RuntimeError(said.pop())
        return real(self, *given)

    monkeypatch.setattr(TorchOps, "layer_norm", layer_norm)
    return said


def answers(harness: EngineHarness, engine: Engine, prefix: str) -> dict[str, list[object]]:
    """Of three requests at once: their tokens with log-probabilities."""
    grown = msgspec.structs.replace(GREEDY, max_tokens=40)
    asked = {
        "a": (PICTURE, grown),
        "b": (TWO, msgspec.structs.replace(DRAWN, max_tokens=40)),
        "c": (TEXT, msgspec.structs.replace(DRAWN, n=2)),
    }
    for name, (parts, sampling) in asked.items():
        harness.submit(engine, harness.prepare(prefix + name, parts, sampling))
    harness.run(engine)
    harness.assert_clean(engine)
    return {name: [(event.index, event.token) for event in harness.events[prefix + name]] for name in asked}


@each_of(("tokens", "kv_tokens"), [(2048, 4096), (5, 4096), (7, 144)], ids=["whole", "cut", "preempted"])
def test_the_same_answers(
    model: MultimodalLM,
    harness: EngineHarness,
    monkeypatch: pytest.MonkeyPatch,
    tokens: int,
    kv_tokens: int,
) -> None:
    """However many embeddings stay on the device between the parts of a prompt."""
    limits: dict[str, Any] = {"tokens": tokens, "kv_tokens": kv_tokens, "max_model_len": min(kv_tokens, 1024)}
    expected = answers(harness, engine_at(model, harness.root, **limits), "cpu-")
    monkeypatch.setattr(engines, "open_streams", lambda device: Late())
    found = {}
    for budget in (0, 4 << 10, 1 << 20):
        monkeypatch.setattr(device, "EMBEDDINGS", budget)
        engine = engine_at(model, harness.root, **limits)
        found[budget] = answers(harness, engine, f"late-{budget}-")
        assert (engine.stats.preemptions > 0) == (kv_tokens < 4096), budget
    assert found == dict.fromkeys(found, expected)


def test_embeddings_are_on_the_device_until_their_prompt_is_computed(
    model: MultimodalLM, harness: EngineHarness, late: Late
) -> None:
    engine = engine_at(model, harness.root, tokens=8)
    harness.submit(engine, harness.prepare("a", PICTURE, GREEDY))
    sequence, store = engine._scheduler["a", 0], engine._runner.embeddings
    seen = []
    while engine._scheduler["a", 0].n_tokens < sequence.n_prompt + 2:
        harness.book(engine.step())
        if ("a", 0) in store.keys():
            assert ("a", 0) not in store._device or torch.equal(store._device["a", 0], store._host["a", 0].embeddings)
            seen.append((("a", 0) in store._device, sequence.n_computed < sequence.n_prompt))
    assert seen.count((True, True)) > 2 and seen[-1] == (False, False) and (False, True) not in seen
    harness.run(engine)


@each_of("tokens", [2048, 8], ids=["whole", "cut"])
def test_a_device_never_holds_more_embeddings_than_its_budget(
    model: MultimodalLM, harness: EngineHarness, late: Late, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    """Whatever is encoded or computed; what a tower gives out next to it is in the peak that was measured of it."""
    row = model.hidden_size * model.dtype.itemsize
    budget = 30 * row
    monkeypatch.setattr(device, "EMBEDDINGS", budget)
    engine = engine_at(model, harness.root, tokens=tokens)
    seen: list[tuple[int, int]] = []

    def watch(method: str) -> None:
        real = getattr(MultimodalLM, method)

        def watched(self: MultimodalLM, *args: Any) -> object:
            store = engine._runner.embeddings
            seen.append((store.nbytes_on_device(), len(store.keys())))
            return real(self, *args)

        monkeypatch.setattr(MultimodalLM, method, watched)

    watch("encode")
    watch("forward")
    for name, parts in (("a", [*TWO, *TWO]), ("b", PICTURE), ("c", TWO)):
        harness.submit(engine, harness.prepare(name, parts, GREEDY))
    harness.run(engine)
    harness.assert_clean(engine)
    assert max(nbytes for nbytes, _ in seen) <= budget
    assert max(nbytes for nbytes, _ in seen) > budget // 2, "some stay"
    assert max(n for _, n in seen) >= 5, "and all together are more"


def test_a_step_waits_once(model: MultimodalLM, harness: EngineHarness, late: Late) -> None:
    engine = engine_at(model, harness.root)
    harness.submit(engine, harness.prepare("a", TEXT, DRAWN))
    for _ in range(3):
        harness.book(engine.step())
    before = late.waits
    harness.book(engine.step())
    packed = 1  # the double calls no copy done that nobody waited for; a device has done it with the step before last
    assert late.waits - before == 1 + packed
    harness.run(engine)


def test_the_hosts_time_is_never_below_0(
    model: MultimodalLM, harness: EngineHarness, late: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step in the middle of a prompt waits for nothing: what the step before waited is none of its business."""

    monkeypatch.setattr(_Pending, "done", lambda self: True)  # of copies: the tokens alone are waited for
    monkeypatch.setattr(_Pending, "wait", lambda self: time.sleep(0.1))
    engine = engine_at(model, harness.root, tokens=4)
    found = []
    for name in ("a", "b"):
        harness.submit(engine, harness.prepare(name, TEXT, msgspec.structs.replace(GREEDY, max_tokens=1)))
        while not engine.idle:
            messages = engine.step()
            found += [message.seconds["host"] for message in messages if isinstance(message, StepDone)]
            harness.book(messages)
    assert len(found) > 3 and min(found) >= 0


def test_an_encoder_that_is_refused_costs_its_own_request(
    model: MultimodalLM, harness: EngineHarness, late: Late, refusing: list[str]
) -> None:
    engine = engine_at(model, harness.root, encoder_tokens=1)  # one medium a call: none is repeated
    for name, parts in (("text", TEXT), ("fails", PICTURE), ("works", TWO)):
        harness.submit(engine, harness.prepare(name, parts, GREEDY))
    refusing.append(REFUSED)
    harness.run(engine)
    harness.assert_clean(engine)
    assert {name: answer.reason for name, answer in harness.finished.items()} == {
        "text": "done", "fails": "failed", "works": "done",
    }  # fmt: skip
    assert harness.finished["fails"].message == "the image could not be encoded (RuntimeError)"
    assert harness.read["fails"]  # its lease was given back all the same
    assert len(harness.tokens("text")) == len(harness.tokens("works")) == GREEDY.max_tokens


def test_a_call_that_is_refused_is_repeated_medium_by_medium(
    model: MultimodalLM, harness: EngineHarness, late: Late, refusing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that succeeds nobody pays."""
    real, calls = MultimodalLM.encode, list[int]()

    def encode(self: MultimodalLM, kind: str, arrays: Any, grids: Any) -> Any:
        calls.append(len(arrays))
        return real(self, kind, arrays, grids)

    monkeypatch.setattr(MultimodalLM, "encode", encode)
    engine = engine_at(model, harness.root, tokens=2048)
    for name, parts in (("a", PICTURE), ("b", TWO)):
        harness.submit(engine, harness.prepare(name, parts, GREEDY))
    refusing.append(REFUSED)
    harness.run(engine)
    harness.assert_clean(engine)
    assert calls == [3, 1, 1, 1] and {found.reason for found in harness.finished.values()} == {"done"}


@each_of("said", BROKEN, ids=["507", "inner", "number", "word"])
def test_a_broken_device_ends_the_engine(
    model: MultimodalLM, harness: EngineHarness, late: Late, refusing: list[str], said: str
) -> None:
    """Whatever it says, and where an encoder hears it."""
    check_broken(model, harness, refusing, said)


def check_broken(model: MultimodalLM, harness: EngineHarness, refusing: list[str], said: str) -> None:
    engine = engine_at(model, harness.root)
    harness.submit(engine, harness.prepare("text", TEXT, GREEDY))
    harness.submit(engine, harness.prepare("fails", PICTURE, GREEDY))
    refusing.append(said)
    with pytest.raises(RuntimeError, match=said[:20]):
        harness.run(engine)


NARROWED: dict[str, tuple[Callable[[str], bool], str]] = {  # which words end the engine, and what they miss
    "one number": (lambda said: "507015" in said, BROKEN[2]),
    "the numbers of a broken device": (lambda said: re.search(r"507\d{3}", said) is not None, BROKEN[1]),
    "any number but a refusal's": (lambda said: re.search(r"\b(?![15]61)\d{6}\b", said) is not None, BROKEN[3]),
}


@each_of("narrowed", NARROWED)
def test_a_narrower_class_of_fatal_errors_is_caught(
    narrowed: str, model: MultimodalLM, harness: EngineHarness, late: Late, refusing: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By the test above: the engine goes on with a device that is broken."""
    ends, missed = NARROWED[narrowed]
    monkeypatch.setattr("model.engine.encoding.is_broken", lambda error, behind: ends(str(error)))
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        check_broken(model, harness, refusing, missed)


def test_what_fails_after_its_call_ends_the_engine(model: MultimodalLM, harness: EngineHarness, late: Late) -> None:
    """Nobody knows by then whose it was."""
    engine = engine_at(model, harness.root)
    harness.submit(engine, harness.prepare("fails", TEXT, GREEDY))
    engine.step()
    late.fails = lambda: RuntimeError(BROKEN[0])
    with pytest.raises(RuntimeError, match="507015"):
        harness.run(engine)
