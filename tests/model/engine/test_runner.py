"""A step as data: what a second runner makes of it that got it through a socket, and inputs the host has not seen."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from model.engine import engine as engines
from model.engine.batch import Batch, BatchHeader
from model.engine.engine import Engine
from model.engine.messages import SamplingParams, StepDone
from model.engine.plan import Chunk, Outcome, Plan
from model.engine.runner import Runner
from model.engine.sequence import Key
from model.net.multimodal import MultimodalLM
from model.staging.streams import open_streams
from shm import Channel, ChannelClosed, channel_pair
from tests.model.engine.engine_harness import GREEDY, EngineHarness, Parts, engine_at, picture
from tests.model.staging.late import Late
from tests.tables import each_of

pytestmark = pytest.mark.network

ONE: Parts = ["look: ", picture(120, 90, 1), "what is in this image?"]
TWO: Parts = [picture(60, 70, 2), "and", picture(90, 60, 3), "describe both of them"]
TEXT: Parts = ["one two three"]
RULES = SamplingParams(
    max_tokens=40, temperature=0.9, top_p=0.8, top_k=30, seed=5, repetition_penalty=1.2, frequency_penalty=0.3,
    logprobs=True, top_logprobs=2, logit_bias=((3, 1.0),), bad_words=((5, 6), (8,)), min_tokens=40,
    stop_token_ids=(7,), n=2,
)  # fmt: skip


class StepMessage(msgspec.Struct, tag=True, frozen=True):
    """All that another process gets of a step."""

    plan: Plan
    header: BatchHeader
    payload: tuple[bytes, ...]


class Mirror:
    """Runs each step on a second runner too, which sees nothing but what comes out of a socket."""

    def __init__(self, engine: Engine, second: Runner) -> None:
        self._runner, self._second = engine._runner, second
        mine, theirs = channel_pair()
        self._out: Channel[Any] = Channel(mine, StepMessage)
        self._in: Channel[Any] = Channel(theirs, StepMessage)
        self._outcomes: list[Outcome] = []
        self._done = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()
        self.steps, self.encodes, self.nbytes = 0, 0, 0
        engine._runner.run = self.run  # type: ignore[method-assign]

    def run(self, plan: Plan, batch: Batch) -> Outcome:
        message = StepMessage(plan, batch.header, tuple(bytes(part) for part in batch.payload))
        self._out.send(message)
        self._done.acquire()
        mine, theirs = self._runner.collect(self._runner.launch(plan, batch)), self._outcomes.pop()
        for name in ("tokens", "scores", "read", "filled", "dropped"):
            assert getattr(mine, name) == getattr(theirs, name), name
        assert {key: str(error) for key, error in mine.failed.items()} == {
            key: str(error) for key, error in theirs.failed.items()
        }
        assert self._runner.embeddings.keys() == self._second.embeddings.keys()
        self.steps += 1
        self.encodes += len(plan.encodes)
        return mine

    def close(self) -> None:
        self._out.close()
        self._thread.join()
        self._in.close()

    def _follow(self) -> None:
        while True:
            try:
                message = self._in.recv(None)
            except ChannelClosed:
                return
            assert isinstance(message, StepMessage)
            batch = Batch(message.header, self._second.packer)
            for room, part in zip(batch.payload, message.payload, strict=True):
                room[:] = part
            self._outcomes.append(self._second.run(message.plan, batch))
            self._done.release()


@contextmanager
def mirrored(engine: Engine, second: Engine) -> Iterator[Mirror]:
    mirror = Mirror(engine, second._runner)
    try:
        yield mirror
    finally:
        mirror.close()


STREAMS: dict[str, Any] = {"cpu": open_streams, "late": lambda device: Late()}


@each_of(
    ("streams", "tokens", "kv_tokens"),
    [("cpu", 2048, 4096), ("cpu", 64, 208), ("late", 7, 4096), ("late", 64, 208)],
    ids=["whole", "preempted", "late, cut", "late, preempted"],
)
def test_a_second_runner_fed_through_a_socket_gives_the_same_tokens(
    model: MultimodalLM, harness: EngineHarness, monkeypatch: pytest.MonkeyPatch, streams: str, tokens: int,
    kv_tokens: int,
) -> None:  # fmt: skip
    """Pictures by their handles, answers that share blocks, scored prompts, rules, failures, preemption."""
    monkeypatch.setattr(engines, "open_streams", STREAMS[streams])
    limits: dict[str, Any] = {"tokens": tokens, "kv_tokens": kv_tokens, "max_model_len": min(kv_tokens, 1024)}
    engine, second = (engine_at(model, harness.root, **limits) for _ in range(2))
    bad = harness.prepare("bad", TWO)
    harness.drop("bad")  # its segments are gone before they are read
    scored = msgspec.structs.replace(harness.prepare("scored", TEXT, RULES), scores_prompt=True)
    with mirrored(engine, second) as mirror:
        long = msgspec.structs.replace(GREEDY, max_tokens=40)
        for generate in (harness.prepare("a", ONE, long), harness.prepare("b", TWO, RULES), bad, scored):
            harness.submit(engine, generate)
        harness.run(engine)
    harness.assert_clean(engine)
    assert harness.finished["bad"].reason == "failed" and harness.finished["b"].reason == "done"
    assert mirror.steps >= 40 and mirror.encodes >= 4
    assert (engine.stats.preemptions > 0) == (kv_tokens < 4096)
    assert second.idle, "no scheduler took part"


@each_of(("streams", "temperature"), [("cpu", 0.0), ("cpu", 1.1), ("late", 1.1)])
def test_a_decode_may_take_a_token_that_the_host_has_not_seen(
    model: MultimodalLM, harness: EngineHarness, monkeypatch: pytest.MonkeyPatch, streams: str, temperature: float
) -> None:
    """Two steps are launched before the first is read; the tokens are those of one step after the other."""
    monkeypatch.setattr(engines, "open_streams", STREAMS[streams])
    sampling = msgspec.structs.replace(GREEDY, temperature=temperature, seed=11)
    texts: dict[str, Parts] = {"a": TEXT, "b": ["four five six seven"], "c": ONE}
    expected = {}
    for mode in ("in-turn", "overlapped"):
        engine = engine_at(model, harness.root, tokens=2048, block_size=64)
        for name, parts in texts.items():
            harness.submit(engine, harness.prepare(f"{name}-{mode}", parts, sampling))
        harness.book(engine.step())
        if mode == "overlapped":
            for _ in range(3):
                _two_steps_at_once(engine, harness)
        harness.run(engine)
        harness.assert_clean(engine)
        expected[mode] = {name: harness.tokens(f"{name}-{mode}") for name in texts}
    assert expected["overlapped"] == expected["in-turn"]
    assert len({tuple(tokens) for tokens in expected["in-turn"].values()}) == 3


def _two_steps_at_once(engine: Engine, harness: EngineHarness) -> None:
    scheduler, runner = engine._scheduler, engine._runner
    first = scheduler.plan()
    rows: dict[Key, int] = {key: i for i, key in enumerate(key for chunk in first.chunks for key in chunk.sampled_keys)}
    second = Plan(
        chunks=tuple(
            Chunk(
                request_id=chunk.request_id, start=chunk.stop, stop=chunk.stop + 1, samples=True,
                prev_sample=rows[chunk.key],
            )
            for chunk in reversed(first.chunks)  # its rows are not those of the first
        )
    )  # fmt: skip
    launched = [runner.launch(plan, engine._batches.build(plan, scheduler)) for plan in (first, second)]
    for plan, step in zip((first, second), launched, strict=True):
        outcome = runner.collect(step)
        events = scheduler.commit(plan, outcome)
        assert len(events) == 3
        harness.book(
            engine._messages(plan, outcome, {}, StepDone(tokens=tuple(events), stats=engine.stats, seconds={}))
        )
    engine.check_integrity()
