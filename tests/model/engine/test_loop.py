"""The process main, run in a thread over a real channel: ready, answers, pulse, and what ends it."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from configs.serve import EngineConfig
from model.engine import loop
from model.engine.engine import Engine
from model.engine.kv_blocks import BlockError
from model.engine.messages import (
    Abort,
    EnginePulse,
    EngineReady,
    Finished,
    FromEngine,
    Generate,
    MediaRead,
    SamplingParams,
    StartEngine,
    StepDone,
    ToEngine,
)
from model.engine.plan import Progress
from model.net.multimodal import MultimodalLM
from model.ops.load import load_ops
from shm import Channel, ChannelClosed, ChannelError, Loading, Pulse, channel_pair
from tests.model.engine.engine_harness import GREEDY, EngineHarness, engine_at, picture, with_prepared
from tests.tables import each_of
from tokenization.placeholders import text_only

pytestmark = pytest.mark.network

CONFIG = EngineConfig(device="cpu", dtype="float32", block_size=16, kv_cache_bytes=4 << 20, max_batched_tokens=32)


@dataclass
class Running:
    """An engine that serves in a thread, seen from the server's end."""

    server: Channel[FromEngine | Loading]
    thread: threading.Thread
    ended: list[BaseException]
    steps: list[int] = field(default_factory=list)  # what was said of the loading

    def next(self) -> FromEngine:
        """The next message that is no pulse."""
        while True:
            message = self.server.recv(20)
            assert message is not None, "the engine says nothing"
            if isinstance(message, Loading):
                self.steps.append(message.steps)
            elif not isinstance(message, EnginePulse):
                return message

    def until_finished(self, n: int) -> list[FromEngine]:
        """Messages up to the n-th Finished."""
        found: list[FromEngine] = []
        while sum(isinstance(message, Finished) for message in found) < n:
            found.append(self.next())
        return found

    def end(self) -> BaseException:
        """Close the server's end; what the engine left with."""
        self.server.close()
        self.thread.join(60)
        assert not self.thread.is_alive()
        return self.ended[0]


def start_of(checkpoint: Path, root: Path, config: EngineConfig = CONFIG) -> StartEngine:
    return StartEngine(checkpoint=str(checkpoint), engine=config, shm_root=str(root), max_model_len=512)


@pytest.fixture
def running(checkpoint: Path, harness: EngineHarness) -> Iterator[Running]:
    ours, theirs = channel_pair()
    channel: Channel[ToEngine] = Channel(theirs, ToEngine)
    ended: list[BaseException] = []

    def serve() -> None:
        try:
            loop.run(channel, start_of(checkpoint, harness.root), Pulse(channel), lambda *_: None)
        except (ChannelClosed, ChannelError, ValueError, BlockError) as error:
            ended.append(error)
        finally:
            channel.close()

    thread = threading.Thread(target=serve)
    thread.start()
    found = Running(Channel(ours, FromEngine | Loading), thread, ended)
    yield found
    found.server.close()
    thread.join(60)


def test_ready_tells_what_was_loaded(running: Running, checkpoint: Path) -> None:
    ready = running.next()
    assert isinstance(ready, EngineReady)
    assert (ready.device, ready.dtype, ready.block_size, ready.max_model_len) == ("cpu", "float32", 16, 512)
    assert ready.max_media_tokens == CONFIG.embedding_bytes // (64 * 4)  # float32
    lines = {line: nbytes for line, nbytes, _ in ready.memory}
    weights = (checkpoint / "model.safetensors").stat().st_size
    table = load_file(checkpoint / "model.safetensors")["model.embed_tokens.weight"].nbytes
    packed = table if load_ops(torch.device("cpu"), torch.float32).prepacks else 0  # it is the head's, too
    assert weights * 0.9 < lines["weights"] - packed <= weights
    assert ready.kv_blocks * 16 * 2 * 2 * 2 * 16 * 4 == lines["KV cache"]  # layers, key and value, heads, dim, bytes


def test_each_tensor_and_stage_is_a_step_of_loading(checkpoint: Path, tmp_path: Path) -> None:
    steps: list[int] = []
    loop.load(start_of(checkpoint, tmp_path), lambda: steps.append(1))
    tensors = len(load_file(checkpoint / "model.safetensors"))
    assert len(steps) == tensors + 4


def test_requests_are_answered_and_pulses_go_on(running: Running, harness: EngineHarness, model: MultimodalLM) -> None:
    assert isinstance(running.next(), EngineReady)
    running.server.send(harness.prepare("a", [picture(90, 90, 1), "describe"]))
    running.server.send(harness.prepare("b", ["one two three"]))
    messages = running.until_finished(2)
    harness.book(messages)
    assert {type(message) for message in messages} == {MediaRead, StepDone, Finished}
    alone = engine_at(model, harness.root, tokens=2048)
    harness.submit(alone, harness.prepare("again", [picture(90, 90, 1), "describe"]))
    harness.run(alone)
    assert harness.tokens("a") == harness.tokens("again") and len(harness.tokens("b")) == GREEDY.max_tokens
    while not isinstance(pulse := running.server.recv(5), EnginePulse):
        assert isinstance(pulse, Loading), "the last one of the loading may come late"
    assert pulse.step_seconds == 0
    assert harness.pool.stats().leased_bytes == 0
    assert isinstance(running.end(), ChannelClosed)


def test_abort_ends_a_long_answer_at_once(running: Running, harness: EngineHarness) -> None:
    assert isinstance(running.next(), EngineReady)
    long = SamplingParams(max_tokens=400, temperature=0.0, seed=0)
    running.server.send(harness.prepare("long", ["one two three"], long))
    assert isinstance(running.next(), StepDone)
    running.server.send(Abort(request_id="long"))
    running.server.send(Abort(request_id="nobody"))
    messages = running.until_finished(2)
    finished = [message for message in messages if isinstance(message, Finished)]
    assert [(message.request_id, message.reason) for message in finished] == [("long", "abort"), ("nobody", "abort")]
    tokens = [event for message in messages if isinstance(message, StepDone) for event in message.tokens]
    assert len(tokens) < 399


def test_a_refused_request_is_answered(running: Running, harness: EngineHarness) -> None:
    assert isinstance(running.next(), EngineReady)
    generate = harness.prepare("a", ["one two three"])
    running.server.send(with_prepared(generate, input_ids=generate.prepared.input_ids + 100_000))
    answer = running.next()
    assert isinstance(answer, Finished) and answer.reason == "failed"
    running.server.send(generate)
    assert isinstance(running.until_finished(1)[-1], Finished)  # it lives on


def test_the_end_of_the_channel_ends_an_idle_engine_at_once(running: Running) -> None:
    assert isinstance(running.next(), EngineReady)
    assert isinstance(running.end(), ChannelClosed)


def test_a_message_that_cannot_be_read_ends_the_engine(running: Running) -> None:
    assert isinstance(running.next(), EngineReady)
    running.server.send(EnginePulse(step_seconds=0, step_tokens=0, step_patches=0))
    running.thread.join(60)
    assert isinstance(running.ended[0], ChannelError)


def test_a_second_start_ends_the_engine(running: Running, checkpoint: Path, tmp_path: Path) -> None:
    assert isinstance(running.next(), EngineReady)
    running.server.send(start_of(checkpoint, tmp_path))
    running.thread.join(60)
    assert isinstance(running.ended[0], ValueError)


def test_the_configured_limit_wins_where_it_is_lower(checkpoint: Path, tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, max_model_len=100)
    engine, ready = loop.load(start_of(checkpoint, tmp_path, config))
    assert ready.max_model_len == engine.size.max_model_len == 100
    assert engine.idle and engine.stats.kv_blocks_used == 0  # the warm-up left nothing


@each_of(("asked", "seqs", "has"), [(None, 16, 256), (None, 300, 300), (32, 16, 32)], copied=("checkpoint",))
def test_a_step_of_a_cpu_has_256_tokens_or_as_many_as_sequences_or_what_was_asked_for(
    checkpoint: Path, tmp_path: Path, asked: int | None, seqs: int, has: int
) -> None:
    config = msgspec.structs.replace(CONFIG, max_batched_tokens=asked, max_seqs=seqs)
    engine, _ = loop.load(start_of(checkpoint, tmp_path, config))
    prepared = text_only("long", [0] * 400)
    assert engine.submit(Generate(prepared=prepared, sampling=SamplingParams(max_tokens=2, seed=0))) is None
    assert [message.n_tokens for message in engine.step() if isinstance(message, StepDone)] == [has]


def test_books_that_do_not_add_up_end_an_idle_engine(
    model: MultimodalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(self: Engine) -> None:
        raise BlockError("they do not add up")

    engine = engine_at(model, tmp_path)
    monkeypatch.setattr(Engine, "check_integrity", wrong)
    with pytest.raises(BlockError):
        loop.serve(engine, loop.Inbox(), lambda message: None)


def test_a_pulse_tells_the_age_of_the_step(model: MultimodalLM, tmp_path: Path) -> None:
    engine = engine_at(model, tmp_path)
    assert loop.pulse_of(engine, 5.0) == EnginePulse(step_seconds=0.0, step_tokens=0, step_patches=0)
    engine.progress = Progress(started=3.0, tokens=7, patches=40, pairs=1600)
    assert loop.pulse_of(engine, 5.0) == EnginePulse(step_seconds=2.0, step_tokens=7, step_patches=40, step_pairs=1600)
