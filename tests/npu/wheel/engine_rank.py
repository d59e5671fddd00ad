"""One of two ranks whose engine runs the requests of families over the stub's NPUs, and over ring 0 for comparison."""

import json
import os
import socket
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from configs.serve import Device, EngineConfig
from model.device import free_bytes
from model.engine import kv_cache_size, loop
from model.engine.engine import Engine
from model.engine.messages import StartEngine
from model.engine.ranks import part
from model.engine.ranks.link import RankLink, open_link
from model.engine.runner import Runner
from model.ops.collectives import Ranks, join
from model.ops.npu import NpuOps
from shm import ChannelClosed
from tests.model.engine.engine_harness import EngineHarness, engine_harness_at
from tests.npu.stub.counts import counted
from tests.npu.stub.graphs import go_on
from tests.npu.wheel.families import FAMILIES, requests_for
from tests.npu.wheel.twins import BLOCK, Said, record

COUNTED = ("HcclAllReduce", "HcclAllGather", "computed_sum", "computed_gather", "graph_replay", "graph_capture")
RANKS = 2
MODEL_LEN = 512  # tokens


class Job(msgspec.Struct, frozen=True, kw_only=True):
    family: str
    path: str
    device: Device = "npu"  # "cpu": ring 0, whose ranks meet in memory
    graphs: bool = False
    ranks: int = RANKS  # 1: rank 0 alone
    requests: tuple[str, ...] = ()  # of `requests_for`; none: all
    fault: str = ""  # of rank 1's driver: a file of NPU_STUB_FAULT
    free_mib: int = 0  # of the last rank's card, beside its weights; 0: as much as any
    planted: bool = False  # sums are not waited for


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What one step asked of the driver, but what is 0."""

    counts: dict[str, int]
    rows: int  # of logits


class RankSaid(msgspec.Struct, frozen=True, kw_only=True):
    layers: int = 0
    blocks: int = 0
    bound: str = ""
    steps: list[Step] = []
    events: dict[str, Any] = {}  # of rank 0
    error: str = ""  # that its start ended with


def main(rank: int, root: Path) -> None:
    """given.json: a list of jobs. said: of each; rank 0 writes the logits of job i to logits-<i>.pt."""
    os.environ["NPU_STUB_CARDS"] = str(RANKS)
    torch.set_num_threads(1)
    jobs = msgspec.convert(json.loads((root / "given.json").read_text())["jobs"], list[Job])
    with pytest.MonkeyPatch.context() as patch:
        _go_on_while_waiting(patch)
        said = [_done(job, rank, root / str(i)) for i, job in enumerate(jobs)]
    (root / f"said-{rank}.json").write_bytes(msgspec.json.encode(said))
    if dist.is_initialized():
        dist.destroy_process_group()


def _done(job: Job, rank: int, root: Path) -> RankSaid:
    with pytest.MonkeyPatch.context() as patch:
        if rank and job.fault:
            patch.setenv("NPU_STUB_FAULT", job.fault)
        if job.free_mib and rank == job.ranks - 1:
            _leave_free(patch, job.free_mib)
        patch.setattr(part, "join", lambda rank, n, meeting, device: _joined(rank, root.parent, device.type))
        if job.device == "cpu":
            patch.setattr(part, "load_ops", _ring0)
        if job.planted:
            patch.setattr(Ranks, "all_reduce", _sum_without_waiting)
        if job.ranks == 1 and rank:
            return RankSaid()
        steps = _count_steps(patch, rank)
        start = _start(job, rank, root)
        link = open_link(start)
        try:
            return _lead(job, start, root, steps, link) if rank == 0 else _follow(start, patch, steps, link)
        except RuntimeError as error:
            return RankSaid(error=str(error))
        finally:
            if link is not None:
                link.close()


def _lead(job: Job, start: StartEngine, root: Path, steps: list[Step], link: RankLink | None) -> RankSaid:
    said = Said(events={}, logits=[], cut_media=0, mixed=0, preemptions=0)
    requests = requests_for(FAMILIES[job.family])
    requests = {name: requests[name] for name in job.requests or requests}
    with engine_harness_at(Path(job.path), Path(start.shm_root)) as harness, pytest.MonkeyPatch.context() as patch:
        engine, _ = loop.load(start, link=link)
        steps.clear()
        record(said, patch)
        _run(engine, harness, requests)
    torch.save([logits.cpu() for logits in said.logits], root.with_suffix(".pt"))
    size = engine.size
    return RankSaid(
        layers=engine._runner._model.kv.layers, blocks=size.n_blocks, bound=size.bound, steps=steps,
        events=msgspec.to_builtins(harness.events),
    )  # fmt: skip


def _run(engine: Engine, harness: EngineHarness, requests: Any) -> None:
    """One request more before each step."""
    for name, request in requests.items():
        harness.submit(engine, harness.prepare(name, request.parts, request.sampling))
        harness.book(engine.step())
    harness.run(engine)
    harness.assert_clean(engine)


class _Unheard:
    """A channel and a pulse to a server that is not there."""

    def send(self, message: object) -> None: ...
    def further(self) -> None: ...
    def say(self, what: object) -> None: ...


def _follow(start: StartEngine, patch: pytest.MonkeyPatch, steps: list[Step], link: RankLink | None) -> RankSaid:
    made: list[Runner] = []
    real = Runner.__init__

    def noted(self: Runner, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        made.append(self)

    patch.setattr(Runner, "__init__", noted)
    unheard: Any = _Unheard()
    with pytest.raises(ChannelClosed):
        loop.follow(unheard, start, unheard, link)
    (runner,) = made
    return RankSaid(layers=runner._model.kv.layers, blocks=runner._size.n_blocks, bound=runner._size.bound, steps=steps)


def _go_on_while_waiting(patch: pytest.MonkeyPatch) -> None:
    """A card works beside its host; the stub's does so where the host waits for another rank."""
    for name in ("receive", "agree"):
        real = getattr(RankLink, name)

        def waiting(self: RankLink, *args: Any, real: Any = real) -> Any:
            go_on()
            return real(self, *args)

        patch.setattr(RankLink, name, waiting)


def _count_steps(patch: pytest.MonkeyPatch, rank: int) -> list[Step]:
    """What each step asks of the driver, and what the device does of it."""
    steps: list[Step] = []
    name = "launch" if rank else "run"
    real = getattr(Runner, name)

    def stepped(self: Runner, plan: Any, batch: Any) -> Any:
        with counted() as found:
            outcome = real(self, plan, batch)
            go_on()
        counts = {name: found[name] for name in COUNTED if found[name]}
        steps.append(Step(counts=counts, rows=batch.header.n_samples))
        return outcome

    patch.setattr(Runner, name, stepped)
    return steps


@cache
def _joined(rank: int, root: Path, kind: str) -> Ranks:
    """There is one group of NPUs in a process."""
    return join(rank, RANKS, root / f"meeting-{kind}", torch.device(kind, rank if kind == "npu" else 0))


def _ring0(device: torch.device, dtype: torch.dtype, *, checks: bool = False, ranks: Ranks) -> NpuOps:
    return NpuOps(device, dtype, checks=True, ranks=ranks)


def _leave_free(patch: pytest.MonkeyPatch, mib: int) -> None:
    """From the first time on that the start asks what is free, the card is no larger."""

    def free(device: torch.device) -> int:
        found = free_bytes(device)
        if "NPU_STUB_MIB" not in os.environ:
            total = torch.get_device_module(device).mem_get_info(device)[1]
            patch.setenv("NPU_STUB_MIB", str((total - found >> 20) + mib))
        return free_bytes(device)

    patch.setattr(kv_cache_size, "free_bytes", free)


def _sum_without_waiting(self: Ranks, x: Tensor) -> Tensor:
    x = x.contiguous()
    self._group.group.allreduce([x])  # type: ignore[attr-defined]
    return x


def _start(job: Job, rank: int, root: Path) -> StartEngine:
    """Of a rank, with what it would inherit."""
    config = EngineConfig(
        device=job.device, dtype="bfloat16", tensor_parallel=job.ranks, graphs=job.graphs, max_seqs=8, block_size=BLOCK,
        max_batched_tokens=13, embedding_bytes=4 << 20, check_launches=True,
    )  # fmt: skip
    start = StartEngine(checkpoint=job.path, engine=config, shm_root=f"{root}-shm", max_model_len=MODEL_LEN, rank=rank)
    if job.ranks == 1:
        return start
    here = f"\0{root}"
    if rank == 0:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(here)
            listening.listen()
            sock, _ = listening.accept()
    else:
        sock = _connected(here)
    return msgspec.structs.replace(start, links=(sock.detach(),), meeting=os.memfd_create("unused"))


def _connected(there: str) -> socket.socket:
    deadline = time.monotonic() + 600
    while True:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(there)
            return sock
        except ConnectionRefusedError:  # rank 0 is not so far
            sock.close()
            assert time.monotonic() < deadline
            time.sleep(0.02)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[3]))
