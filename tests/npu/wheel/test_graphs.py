"""Decode steps as graphs on the stub's NPU: the same answers, bit for bit, as steps that are launched one by one."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from model.engine.messages import SamplingParams
from model.staging.graphs import DecodeGraphs
from tests.model.engine.engine_harness import Parts, engine_at, engine_harness_at, picture
from tests.npu.stub.counts import counted
from tests.npu.wheel.families import DRAWN, GREEDY
from tests.npu.wheel.launches import FORM
from tests.npu.wheel.twins import BLOCK, Request, Said, assert_twins, load_on, run_on
from tests.tiny.qwen2_vl import write_qwen2_vl

pytestmark = pytest.mark.npu

LONG: Parts = ["a long prompt " * 4, picture(140, 112, 5), "and what is in it?"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2_vl(tmp_path_factory.mktemp("tiny"), tied=False)


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[tuple[int, int]]]:
    """(sequences, rows of the graph) of every replay."""
    found: Counter[tuple[int, int]] = Counter()
    real = DecodeGraphs.padding_for

    def padding_for(self: DecodeGraphs, sequences: int, table_blocks: int) -> Any:
        padding = real(self, sequences, table_blocks)
        if padding is not None:
            found[sequences, padding.rows] += 1
        return padding

    monkeypatch.setattr(DecodeGraphs, "padding_for", padding_for)
    yield found


def test_sizes_between_those_that_are_captured(
    checkpoint: Path, npu: torch.device, tmp_path: Path, replayed: Counter[tuple[int, int]]
) -> None:
    """Seven answers of different lengths, one of which ends in each third step."""
    requests = {f"{i}": Request(parts=[f"number {i}"], sampling=asked(12 + 3 * i)) for i in range(7)}
    assert_twins(*both(checkpoint, npu, tmp_path, requests, seqs=7))
    assert {(5, 7), (6, 7), (7, 7), (3, 4), (4, 4), (2, 2), (1, 1)} <= set(replayed)


def test_lengths_that_change_over_500_steps(
    npu: torch.device, tmp_path: Path, replayed: Counter[tuple[int, int]]
) -> None:
    """Through four blocks, with three answers and then with two."""
    requests = {name: Request(parts=[name], sampling=asked(n)) for name, n in (("a", 504), ("b", 501), ("c", 99))}
    short = write_qwen2_vl(tmp_path / "short", tied=False, layers=1)
    assert_twins(*both(short, npu, tmp_path, requests))
    assert replayed.total() >= 500 and replayed[3, 4] > 90 and replayed[2, 2] > 390


def test_answers_that_preempt_each_other(
    checkpoint: Path, npu: torch.device, tmp_path: Path, replayed: Counter[tuple[int, int]]
) -> None:
    requests = {name: Request(parts=LONG, sampling=asked(60)) for name in ("a", "b", "c")}
    said = both(checkpoint, npu, tmp_path, requests, blocks=3, max_model_len=2 * BLOCK)
    assert said[0].preemptions > 0 and replayed.total() > 60
    assert_twins(*said)


def test_answers_in_a_form_beside_a_free_one(
    checkpoint: Path, npu: torch.device, tmp_path: Path, replayed: Counter[tuple[int, int]]
) -> None:
    requests = {
        "a": Request(parts=LONG, sampling=asked(12), grammar=FORM), "b": Request(parts=LONG, sampling=asked(12)),
        "c": Request(parts=["c"], sampling=asked(9), grammar=FORM),
    }  # fmt: skip
    assert_twins(*both(checkpoint, npu, tmp_path, requests))
    assert replayed[3, 4] > 5


def test_several_answers_to_one_prompt(
    checkpoint: Path, npu: torch.device, tmp_path: Path, replayed: Counter[tuple[int, int]]
) -> None:
    """They share the prompt's blocks until they write, and draw by chance."""
    sampling = msgspec.structs.replace(DRAWN, n=3, max_tokens=8)
    assert_twins(*both(checkpoint, npu, tmp_path, {"a": Request(parts=LONG, sampling=sampling)}))
    assert replayed[3, 4] == 7


def test_blocks_that_an_earlier_request_left(
    checkpoint: Path, npu: torch.device, tmp_path: Path, replayed: Counter[tuple[int, int]]
) -> None:
    """Replays follow a table whose first blocks another request has computed, beside one of its own blocks alone."""
    requests = {name: Request(parts=["brown fox " * 60], sampling=asked(9)) for name in ("a", "b")}
    requests["other"] = Request(parts=["another one"], sampling=asked(9))
    said = both(checkpoint, npu, tmp_path, requests, starts={"b": 12, "other": 12})
    assert_twins(*said)
    assert said[0].cached >= BLOCK and replayed[2, 2] >= 7


def test_an_abort_between_replays(
    checkpoint: Path, npu: torch.device, tmp_path: Path, replayed: Counter[tuple[int, int]]
) -> None:
    """The others go on in a smaller graph, and whoever comes next gets the blocks."""
    requests = {name: Request(parts=[f"{name} goes on"], sampling=asked(20)) for name in ("a", "b", "c")}
    requests["late"] = Request(parts=["a late one"], sampling=asked(9))
    assert_twins(*both(checkpoint, npu, tmp_path, requests, aborts={"b": 6}, starts={"late": 10}))
    assert replayed[3, 4] and replayed[2, 2]


def test_what_a_replayed_step_waits_for(checkpoint: Path, npu: torch.device, tmp_path: Path) -> None:
    """Once for its tokens; an update for each layer, none of them waited for."""
    steps: list[Counter[str]] = []
    with engine_harness_at(checkpoint, tmp_path) as harness:
        engine = engine_at(load_on(checkpoint, npu, torch.bfloat16), tmp_path, block_size=BLOCK, graphs=True)
        engine.capture_graphs()
        for name in ("a", "b", "c"):
            harness.submit(engine, harness.prepare(name, [name], GREEDY))
        while not engine.idle:
            with counted() as found:
                engine.step()
            steps.append(found)
    replays = [step for step in steps if step["graph_replay"]]
    assert len(replays) == 4
    for step in replays:
        assert step["graph_replay"] == 1 and step["graph_update"] == 2  # layers
        calls = {name: n for name, n in step.items() if name.startswith(("wait", "copy"))}
        assert calls == {"wait_event": 1, "copy_async_host_to_device": 1, "copy_async_device_to_host": 1}


def asked(tokens: int) -> SamplingParams:
    return msgspec.structs.replace(GREEDY, max_tokens=tokens)


def both(
    checkpoint: Path, npu: torch.device, root: Path, requests: dict[str, Request], *, blocks: int = 32, **how: Any
) -> list[Said]:
    """With graphs and without. blocks: for sequences; graphs reserve one besides."""
    return [
        run_on(
            load_on(checkpoint, npu, torch.bfloat16), checkpoint, root / f"graphs-{graphs}", requests,
            graphs=graphs, kv_tokens=(blocks + graphs) * BLOCK, **how,
        )
        for graphs in (True, False)
    ]  # fmt: skip
