"""A few steps of training: the loss falls, a run that was stopped goes on, and equal runs end with equal weights."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load_file
from torch import Tensor

from demo import train
from demo.batches import Batch
from demo.lessons import Learnt, SideHeads, learn
from demo.net import DemoNet
from demo.train import ROTATION, Log, Plan, run

pytestmark = [
    pytest.mark.training,
    pytest.mark.timeout(900),
]  # half a minute by itself, several on a machine that is busy
STEPS, STOP, SAVED = 14, 9, 8  # a run, where it is stopped, and what it had saved by then


class Stopped(Exception):
    """Somebody presses a key."""


@dataclass(slots=True)
class Watch:
    """Stands in for `learn`: notes the loss of every batch, and stops the run before batch `stop`."""

    losses: list[tuple[str, float]]
    stop: int | None = None

    def __call__(self, net: DemoNet, heads: SideHeads, batch: Batch, *, towers: bool) -> Learnt:
        if len(self.losses) == self.stop:
            raise Stopped
        learnt = learn(net, heads, batch, towers=towers)
        self.losses.append((batch.name, learnt.answers))
        return learnt


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A run that was stopped once and went on to its end, and a copy of its folder that went on by itself."""

    out: Path
    again: Path
    before: tuple[tuple[str, float], ...]
    after: tuple[tuple[str, float], ...]


def plan_of(out: Path) -> Plan:
    return Plan(out=out, steps=STEPS, decay=5, ranks=1, rate=4e-3, warmup=4, vocab=400, save_every=SAVED, small=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """A few steps on one core in one process."""
    out, again = tmp_path_factory.mktemp("run") / "demo", tmp_path_factory.mktemp("copy") / "demo"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "_keep_memory", lambda: None)  # it would hold for all tests of this process
        before = Watch([], stop=2 * STOP)
        patch.setattr(train, "learn", before)
        with pytest.raises(Stopped):
            run(plan_of(out))
        shutil.copytree(out, again)
        for folder in (again, out):
            after = Watch([])
            patch.setattr(train, "learn", after)
            run(plan_of(folder))
        yield Finished(out=out, again=again, before=tuple(before.losses), after=tuple(after.losses))


def test_the_loss_falls(finished: Finished) -> None:
    """Means over the batches of five steps; most of them are of text that the model has never seen before."""
    first = np.mean([loss for _, loss in finished.before[:10]])
    last = np.mean([loss for _, loss in finished.after[-10:]])
    assert last < 0.8 * first


def test_each_step_takes_scenes_and_the_next_of_the_others(finished: Finished) -> None:
    assert [name for name, _ in finished.before[0::2]] == ["scenes"] * STOP
    assert [name for name, _ in finished.before[1::2]] == list(ROTATION[:STOP])
    # It goes on behind the last step that was saved.
    assert [name for name, _ in finished.after[1::2]] == [ROTATION[i % len(ROTATION)] for i in range(SAVED, STEPS)]


def test_runs_with_the_same_stop_end_alike(finished: Finished) -> None:
    one, other = (
        torch.load(path / "state.pt", weights_only=True, map_location="cpu") for path in (finished.out, finished.again)
    )
    assert one["step"] == other["step"] == STEPS
    for part in ("net", "heads"):
        assert one[part].keys() == other[part].keys()
        for name, tensor in one[part].items():
            assert torch.equal(tensor, other[part][name]), name


def test_the_log_has_a_line_for_each_save(finished: Finished) -> None:
    entries = [json.loads(line) for line in (finished.out / "log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries] == [SAVED, STEPS]
    assert {"scenes", "scenes side", "sounds", "clips", "talk"} <= entries[0]["loss"].keys() | entries[1]["loss"].keys()
    for entry in entries:
        assert all(0 <= share <= 1 for share in entry["right"].values())
        assert entry["seconds"] > 0
    assert (finished.out / "loss.png").read_bytes()[:4] == b"\x89PNG"


def test_the_checkpoint_is_whole_and_small(finished: Finished) -> None:
    path = finished.out / "checkpoint"
    assert {file.name for file in path.iterdir()} == {
        "chat_template.json", "config.json", "generation_config.json", "model.safetensors", "preprocessor_config.json",
        "tokenizer.json", "tokenizer_config.json", "video_preprocessor_config.json",
    }  # fmt: skip
    assert sum(file.stat().st_size for file in path.iterdir()) < 12_000_000
    tensors = load_file(path / "model.safetensors")
    state = torch.load(finished.out / "state.pt", weights_only=True)["net"]
    assert {f"thinker.{name}" for name in state} == tensors.keys()
    for name, value in state.items():
        assert torch.equal(tensors[f"thinker.{name}"], value.half()), name


def test_a_finished_run_has_nothing_left_to_do(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "_keep_memory", lambda: None)
    monkeypatch.setattr(train, "learn", Watch([], stop=0))
    before = (finished.out / "state.pt").read_bytes()
    run(plan_of(finished.out))
    assert (finished.out / "state.pt").read_bytes() == before


def test_a_new_run_begins_with_the_weights_it_is_given(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with their vocabulary, though the plan says another size."""
    monkeypatch.setattr(train, "_keep_memory", lambda: None)
    begun: list[Tensor] = []

    def look(net: DemoNet, heads: SideHeads, batch: Batch, *, towers: bool) -> Learnt:
        begun.append(net.lm_head.weight.detach().clone())
        raise Stopped

    monkeypatch.setattr(train, "learn", look)
    given = finished.out / "checkpoint"
    with pytest.raises(Stopped):
        run(replace(plan_of(tmp_path / "next"), weights=given, vocab=300))
    assert torch.equal(begun[0], load_file(given / "model.safetensors")["thinker.lm_head.weight"].float())
    assert (tmp_path / "next/checkpoint/tokenizer.json").read_text() == (given / "tokenizer.json").read_text()


def share(rank: int, meeting: Path, out: Path) -> None:
    """One of two processes: its gradients are 1 and 2, or 3 and none."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    both = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3, 2))]
    both[0].grad = torch.full((2,), 3.0 if rank else 1.0)
    if rank == 0:
        both[1].grad = torch.full((3, 2), 2.0)
    train._share(both, 2)
    torch.save([p.grad for p in both], out / f"{rank}.pt")
    dist.destroy_process_group()


def test_processes_share_the_mean_of_their_gradients(tmp_path: Path) -> None:
    """What one of them had no use for counts as zero there."""
    mp.spawn(share, (tmp_path / "meeting", tmp_path), nprocs=2)  # type: ignore[attr-defined,no-untyped-call]
    for rank in (0, 1):
        first, second = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert torch.equal(first, torch.full((2,), 2.0)) and torch.equal(second, torch.full((3, 2), 1.0))


def test_the_rate_goes_up_stays_and_falls_to_nothing() -> None:
    plan = Plan(out=Path("x"), steps=1000, decay=200, rate=0.5, warmup=100)
    assert plan.rate_at(0) == pytest.approx(0.005)
    assert plan.rate_at(49) == pytest.approx(0.25)
    assert {plan.rate_at(step) for step in range(99, 801)} == {0.5}
    assert plan.rate_at(900) == pytest.approx(0.25)
    assert plan.rate_at(999) == pytest.approx(0.0025) and plan.rate_at(1000) == 0
    assert replace(plan, decay=0).rate_at(999) == 0.5


def test_a_rate_by_the_clock_is_level_for_a_fifth_of_it() -> None:
    plan = Plan(out=Path("x"), steps=9, decay=1, rate=0.5, warmup=10, minutes=10)
    assert plan.rate_at(4, 0) == pytest.approx(0.25)
    assert plan.rate_at(500, 0) == plan.rate_at(500, 119) == 0.5
    assert plan.rate_at(500, 360) == pytest.approx(0.25)
    assert plan.rate_at(500, 600) == plan.rate_at(500, 900) == 0


def test_without_towers_the_decoder_alone_is_changed(finished: Finished, tmp_path: Path) -> None:
    """And a run that has had its minutes ends, whatever its steps."""
    given = finished.out / "checkpoint"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "_keep_memory", lambda: None)
        clock = iter(range(0, 1000, 20))
        patch.setattr(train, "_agreed", lambda seconds, ranks: float(next(clock)))
        run(replace(plan_of(tmp_path / "next"), weights=given, towers=False, minutes=1, steps=1000, warmup=1))
    state = torch.load(tmp_path / "next/state.pt", weights_only=True)
    assert state["step"] == 3 and state["spent"] == 60
    before = load_file(given / "model.safetensors")
    for name, value in state["net"].items():
        same = torch.equal(value, before[f"thinker.{name}"].float())
        assert same == name.startswith(("visual.", "audio_tower.")), name


def test_the_log_forgets_slowly(tmp_path: Path) -> None:
    """Means weigh what is older the less: (4 / 2 + 2) / 1.5 of two losses; one in eight, then eight in eight."""
    log = Log(tmp_path / "log.jsonl", smooth=0.5)
    log.note("scenes", 4.0, 1.0, {"count": (1, 8)})
    log.note("scenes", 2.0, 0.0, {"count": (8, 8)})
    log.note("talk", 1.0, 0.0, {"small_talk": (3, 4)})
    log.note("talk", float("nan"), 0.0, {})
    assert log.line() == "scenes 2.67 talk 1.00"
    log.write(7)
    entry = json.loads((tmp_path / "log.jsonl").read_text())
    assert entry["step"] == 7 and entry["loss"] == {"scenes": 2.6667, "scenes side": 1.0, "talk": 1.0}
    assert entry["right"] == {"count": 0.7083, "small_talk": 0.75}
