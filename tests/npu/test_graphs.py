"""Decode steps as graphs on ring 0: the same answers, bit for bit, as steps that are launched one by one."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from model.engine import runner
from model.engine.engine import Engine
from model.engine.messages import FromEngine, Generate, SamplingParams, StepDone, TokenEvent
from model.net.multimodal import MultimodalLM
from model.ops.npu import NpuOps
from model.staging.graphs import DecodeGraphs, _Captured, ladder, reserved_blocks
from tests.model.engine.engine_harness import engine_at
from tests.model.ops.present import present_ops
from tests.npu.graph_double import GraphDouble
from tests.parity.golden_qwen_vl import checkpoint_with
from tests.parity.harness import load_over
from tests.tables import each_of
from tests.tiny.qwen2_vl import write_qwen2_vl
from tokenization.messages import Prepared

pytestmark = pytest.mark.network

BLOCK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    prompt: int  # tokens
    tokens: int  # of each answer
    n: int = 1
    start: int = 0  # the step before which it comes
    abort: int | None = None  # and the one before which it is taken back


@dataclass(slots=True, kw_only=True)
class Ran:
    events: dict[str, list[TokenEvent]] = field(default_factory=dict)
    replays: Counter[tuple[int, int]] = field(default_factory=Counter)  # (sequences, rows of the graph)
    updates: int = 0  # that took time
    preemptions: int = 0
    cached: int = 0  # tokens that prompts took over
    blocks: set[int] = field(default_factory=set)  # that sequences had


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> MultimodalLM:
    """Trained on 64 tokens: longer prompts turn by other bases, and tokens behind that length scale their queries."""
    return load_model(tmp_path_factory.mktemp("model"))


def load_model(folder: Path) -> MultimodalLM:
    return load_over(present_ops("npu-bfloat16"), checkpoint_by_length(folder))


def checkpoint_by_length(folder: Path) -> Path:
    return checkpoint_with(folder / "ntk", seq_length=64, use_dynamic_ntk=True, use_logn_attn=True)


def run(model: MultimodalLM, asks: Mapping[str, Ask], graphs: bool, *, blocks: int = 16, **limits: Any) -> Ran:
    """blocks: for sequences; graphs reserve one besides."""
    ran = Ran()
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        if model.device.type == "cpu":
            patch.setattr(runner, "graph_module", lambda device: GraphDouble)
        _record(ran, patch)
        stack.callback(GraphDouble.drop)  # where a mistake ends a step that waits
        kv_tokens = (blocks + graphs) * BLOCK
        engine = engine_at(
            model, Path("/nonexistent"), block_size=BLOCK, tokens=1024, graphs=graphs, kv_tokens=kv_tokens, **limits
        )
        engine.capture_graphs()
        step = 0
        while not engine.idle or any(ask.start >= step for ask in asks.values()):
            for name, ask in asks.items():
                if ask.start == step:
                    assert engine.submit(_request(name, ask)) is None
                if ask.abort == step:
                    engine.abort(name)
            _book(ran, engine, engine.step())
            engine.check_integrity()
            step += 1
        ran.preemptions, ran.cached = engine.stats.preemptions, engine.stats.prefix_hits
    return ran


def _record(ran: Ran, patch: pytest.MonkeyPatch) -> None:
    padding_for = DecodeGraphs.padding_for

    def recorded(self: DecodeGraphs, sequences: int, table_blocks: int) -> Any:
        padding = padding_for(self, sequences, table_blocks)
        if padding is not None:
            ran.replays[sequences, padding.rows] += 1
        return padding

    patch.setattr(DecodeGraphs, "padding_for", recorded)


def _request(name: str, ask: Ask) -> Generate:
    rng = np.random.default_rng(len(name) + ask.prompt)
    prepared = Prepared(
        request_id=name, input_ids=rng.integers(0, 200, ask.prompt), media=(), position_delta=0, seconds={},
        positions=np.broadcast_to(np.arange(ask.prompt, dtype=np.int32), (3, ask.prompt)),
    )  # fmt: skip
    temperature = 0.9 if ask.n > 1 else 0.0
    return Generate(
        prepared=prepared,
        sampling=SamplingParams(
            max_tokens=ask.tokens, temperature=temperature, seed=7, n=ask.n, logprobs=True, top_logprobs=2
        ),
    )


def _book(ran: Ran, engine: Engine, messages: Sequence[FromEngine]) -> None:
    for message in messages:
        if isinstance(message, StepDone):
            ran.updates += message.seconds.get("graph_update", 0.0) > 0
            for event in message.tokens:
                ran.events.setdefault(event.request_id, []).append(event)
    ran.blocks |= {block for sequence in engine._scheduler for block in sequence.block_table}


LENGTHS = {"short": Ask(prompt=20, tokens=9), "grows": Ask(prompt=60, tokens=16), "long": Ask(prompt=250, tokens=12)}
_LAUNCHED: dict[tuple[Any, ...], tuple[MultimodalLM, Ran]] = {}  # by the model's number, what was asked and limits


def launched_one_by_one(model: MultimodalLM, asks: Mapping[str, Ask], **limits: Any) -> Ran:
    """Once for all checks: a planted mistake is one of graphs."""
    key = id(model), *asks.items(), *limits.items()
    if key not in _LAUNCHED:
        _LAUNCHED[key] = model, run(model, asks, False, **limits)
    return _LAUNCHED[key][1]


def check_twins(model: MultimodalLM, asks: Mapping[str, Ask], **limits: Any) -> Ran:
    """-> the run with graphs, whose answers are those of the run without."""
    replayed = run(model, asks, True, **limits)
    launched = launched_one_by_one(model, asks, **limits)
    assert replayed.events == launched.events
    assert not launched.replays and replayed.updates == replayed.replays.total() > 0
    return replayed


def check_lengths(model: MultimodalLM) -> None:
    """Three bases in one graph, a padding row beside them; one answer grows into a second block and scaled queries."""
    ran = check_twins(model, LENGTHS)
    assert ran.replays[3, 4] > 5 and ran.replays[2, 2] and ran.replays[1, 1]


def check_full_cache(model: MultimodalLM) -> None:
    """Sequences fill every block that they may have, and padding writes beside them."""
    asks = {name: Ask(prompt=100 + i, tokens=60) for i, name in enumerate(("a", "b", "c"))}
    ran = check_twins(model, asks, blocks=5)
    assert ran.blocks == set(range(5)) and ran.replays[3, 4] > 5


def check_padded(model: MultimodalLM) -> None:
    """Heads of 16, which are padded to 64, two to a head of keys."""
    ops = NpuOps(model.device, model.dtype, checks=True)
    with TemporaryDirectory() as folder:
        narrow = load_over(ops, write_qwen2_vl(Path(folder), tied=False))
    asks = {"a": Ask(prompt=20, tokens=9), "b": Ask(prompt=60, tokens=12)}
    assert check_twins(narrow, asks).replays[2, 2] > 5


def check_an_error(model: MultimodalLM, place: Any, name: str) -> list[list[int]]:
    """Of what a replayed step calls, in the first of them. -> lengths that graphs were updated with."""
    updates: list[list[int]] = []
    replays: list[Any] = []
    whole, replay, update = getattr(place, name), DecodeGraphs.replay, _Captured.update

    def fails(*given: Any, **options: Any) -> Any:
        if replays:
            raise ValueError("planted")
        return whole(*given, **options)

    def replayed(self: DecodeGraphs, batch: Any) -> Any:
        replays.append(batch)
        return replay(self, batch)

    def updated(self: Any, kv_lens: Sequence[int]) -> None:
        updates.append([*kv_lens])
        update(self, kv_lens)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, name, fails)
        patch.setattr(DecodeGraphs, "replay", replayed)
        patch.setattr(_Captured, "update", updated)
        with pytest.raises(ValueError, match="planted"):
            run(model, {"a": Ask(prompt=20, tokens=9), "b": Ask(prompt=60, tokens=9)}, True)
    return updates


BEFORE_A_REPLAY = [(_Captured, "take"), (_Captured, "updates_behind")]
BEHIND_A_REPLAY = [(MultimodalLM, "compute_logits"), (runner, "sample")]


def test_heads_that_are_padded(model: MultimodalLM) -> None:
    check_padded(model)


def test_lengths_bases_and_scales(model: MultimodalLM) -> None:
    check_lengths(model)


def test_a_full_cache(model: MultimodalLM) -> None:
    check_full_cache(model)


@each_of(("place", "name"), BEHIND_A_REPLAY)
def test_an_error_behind_a_replay_leaves_none_that_waits(place: Any, name: str, model: MultimodalLM) -> None:
    """It is updated once: whoever waits for the device does not wait for ever."""
    assert check_an_error(model, place, name) == [[21, 61]]


@each_of(("place", "name"), BEFORE_A_REPLAY)
def test_an_error_before_a_replay_updates_nothing(place: Any, name: str, model: MultimodalLM) -> None:
    assert check_an_error(model, place, name) == []


def test_sizes_between_those_that_are_captured(model: MultimodalLM) -> None:
    asks = {f"{'x' * i}": Ask(prompt=10, tokens=4 + 2 * i) for i in range(1, 7)}
    ran = check_twins(model, asks, seqs=6)
    assert {(5, 6), (3, 4), (6, 6), (4, 4), (2, 2), (1, 1)} <= set(ran.replays)


def test_preemption_several_answers_and_an_abort(model: MultimodalLM) -> None:
    """Whoever comes later gets the blocks of the one that left."""
    asks = {
        "a": Ask(prompt=120, tokens=24), "n": Ask(prompt=118, tokens=20, n=3),
        "gone": Ask(prompt=119, tokens=99, abort=14), "late": Ask(prompt=90, tokens=9, start=16),
    }  # fmt: skip
    ran = check_twins(model, asks, blocks=9)
    assert ran.preemptions > 0 and ran.replays[4, 4] and ran.replays[5, 8] and ran.replays[1, 1]


def test_replays_over_blocks_that_an_earlier_request_left(model: MultimodalLM) -> None:
    """The one that comes later has the tokens of the one before, and two of its blocks; beside it one that has none."""
    asks = {
        "a": Ask(prompt=300, tokens=9), "b": Ask(prompt=300, tokens=12, start=12),
        "other": Ask(prompt=50, tokens=12, start=12),
    }  # fmt: skip
    ran = check_twins(model, asks)
    assert ran.cached == 2 * BLOCK and ran.replays[2, 2] > 9
    assert [event.token.id for event in ran.events["b"]][:9] == [event.token.id for event in ran.events["a"]]


def test_padding_that_names_too_many_blocks_is_not_replayed(model: MultimodalLM) -> None:
    """Five answers share two blocks and their tables name fifteen of sixteen; padding would name three more."""
    asks = {"n": Ask(prompt=300, tokens=9, n=5)}
    ran = run(model, asks, True, blocks=15, max_model_len=512)
    assert ran.events == run(model, asks, False, blocks=15, max_model_len=512).events
    assert ran.replays.total() == ran.updates == 0


def test_without_graphs_nothing_is_reserved(model: MultimodalLM) -> None:
    sizes = {}
    for graphs in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runner, "graph_module", lambda device: GraphDouble)
            engine = engine_at(model, Path("/nonexistent"), block_size=BLOCK, kv_tokens=8 * BLOCK, graphs=graphs)
            sizes[graphs] = engine.size.n_blocks, engine.size.usable, engine.stats.kv_blocks_total
    assert sizes == {True: (8, 7, 7), False: (8, 8, 8)}


@each_of(
    ("most", "sizes"), [(1, (1,)), (2, (1, 2)), (7, (1, 2, 4, 7)), (16, (1, 2, 4, 8, 16)), (17, (1, 2, 4, 8, 16, 17))]
)
def test_the_ladder(most: int, sizes: tuple[int, ...]) -> None:
    assert ladder(most) == sizes


def test_each_row_of_the_largest_graph_has_a_slot() -> None:
    assert [reserved_blocks(most, BLOCK) for most in (1, 128, 129, 4096)] == [1, 1, 2, 32]
