"""Several ranks: sums and gathers by size, a model in parts against the whole, and its graphs.

Every rank runs all of this in a process of its own and makes the same calls. What rank 0 finds is told.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from configs.serve import Device
from model.device import resolve
from model.forward_batch import ForwardBatch
from model.net.multimodal import MultimodalLM
from model.ops.base import Ops
from model.ops.collectives import Ranks, join
from model.ops.load import load_ops
from model.selftest.attention_cases import BLOCK
from model.selftest.checkpoint import write_random
from model.selftest.graphs import build_at, check_graphs
from model.selftest.operators import microseconds
from model.selftest.rows import CaseResult
from model.selftest.teller import Teller

SECTION = "ranks"
SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)  # bytes that each rank brings
_ROW = 2048  # bytes
_VALUES = 16  # whole numbers, whose sums bfloat16 holds
_PROMPT, _DECODED = 48, 8  # tokens
_KINDS: dict[str, Device] = {"cpu": "cpu", "npu": "npu"}  # of which several ranks are served
_TOLERANCE = 0.03  # of the largest logit: a sum in parts is rounded elsewhere


def check_ranks(tell: Teller, where: torch.device, kind: Device, n: int, n_sizes: int, repeats: int) -> None:
    """Rank 0 of n, on `where`, which the others follow with devices of their own. n_sizes: of SIZES."""
    if n == 1:
        tell.skip("several ranks", "not here: --ranks 2 starts two")
        return
    if where.type != "cpu" and (seen := torch.get_device_module(where).device_count()) < n:
        note = f"torch sees {seen} of {n} devices: ASCEND_RT_VISIBLE_DEVICES must name so many"
        tell.send(CaseResult(section=SECTION, name="several ranks", verdict="fail", note=note))
        return
    with TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "model").mkdir()
        write_random(root / "model")
        with _others(n, kind, n_sizes, repeats, root):
            run_rank(tell, where, 0, n, n_sizes, repeats, root)


def run_rank(tell: Teller, where: torch.device, rank: int, n: int, n_sizes: int, repeats: int, root: Path) -> None:
    tell.begin("the group")
    ranks = join(rank, n, root / "meeting", where)
    for name, call in (("all_reduce", _summed), ("all_gather", _gathered)):
        for nbytes in SIZES[:n_sizes]:
            case = f"{nbytes >> 10:,} KiB of each of {n} ranks"
            tell.attempt(name, partial(call, name, case, ranks, where, nbytes, repeats), case, "bfloat16")
    ops, name = load_ops(where, torch.bfloat16, checks=True, ranks=ranks), f"random, {n} ranks"
    tell.attempt(name, partial(_against_the_whole, name, root / "model", ops, repeats), "against one rank", "bfloat16")
    check_graphs(tell, name, root / "model", ops, 2, repeats)


def _summed(name: str, case: str, ranks: Ranks, device: torch.device, nbytes: int, repeats: int) -> CaseResult:
    values = _values(nbytes)
    found = ranks.all_reduce((values * (ranks.rank + 1)).to(device)).cpu()
    wanted = values * (ranks.n * (ranks.n + 1) // 2)
    zeros = torch.zeros_like(values, device=device)
    return _told(name, case, found, wanted, partial(ranks.all_reduce, zeros), device, nbytes, repeats)


def _gathered(name: str, case: str, ranks: Ranks, device: torch.device, nbytes: int, repeats: int) -> CaseResult:
    values = _values(nbytes)
    mine = (values * (ranks.rank + 1)).to(device)
    wanted = torch.cat([values * (rank + 1) for rank in range(ranks.n)], 1)
    found = ranks.all_gather(mine).cpu()
    return _told(name, case, found, wanted, partial(ranks.all_gather, mine), device, nbytes, repeats)


def _told(
    name: str, case: str, found: Tensor, wanted: Tensor, call: Callable[[], Tensor], device: torch.device,
    nbytes: int, repeats: int,
) -> CaseResult:  # fmt: skip
    each, right = microseconds(call, device, repeats), torch.equal(found, wanted)
    return CaseResult(
        section=SECTION, name=name, case=case, dtype="bfloat16", verdict="pass" if right else "fail",
        microseconds=each, figures={"GB/s": nbytes / each / 1e3}, note="" if right else "other numbers arrive",
    )  # fmt: skip


def _values(nbytes: int) -> Tensor:
    return (torch.arange(nbytes // 2) % _VALUES).to(torch.bfloat16).view(-1, _ROW // 2)


@torch.inference_mode()
def _against_the_whole(name: str, path: Path, ops: Ops, repeats: int) -> CaseResult:
    """Logits of a prompt and of decoded tokens, and a decode step's time; rank 0 computes the whole as well."""
    found, each = _run(build_at(path, ops), repeats)
    error, alone = 0.0, each
    if ops.ranks.rank == 0:
        wanted, alone = _run(build_at(path, load_ops(ops.device, ops.dtype, checks=True)), repeats)
        if found.shape != wanted.shape or not torch.isfinite(found).all():
            raise ValueError(f"logits {list(found.shape)} instead of {list(wanted.shape)}, or not finite")
        error = float((found - wanted).abs().max() / wanted.abs().max())
    return CaseResult(
        section=SECTION, name=name, case="against one rank", dtype=str(ops.dtype).removeprefix("torch."),
        verdict="pass" if error <= _TOLERANCE else "fail", error=error, tolerance=_TOLERANCE, microseconds=each,
        figures={"us of one rank": alone}, note=f"a decode step; logits of {_PROMPT + _DECODED} tokens",
    )  # fmt: skip


def _run(model: MultimodalLM, repeats: int) -> tuple[Tensor, float]:
    """float32 logits [tokens, vocab] on the host, and microseconds of a decode step."""
    kv = model.kv_cache(1, BLOCK)
    steps = [(0, _PROMPT), *((_PROMPT + i, 1) for i in range(_DECODED))]
    batches = [_batch(model.device, start, n) for start, n in steps]
    found = [model.compute_logits(model.forward(batch, kv)).float().cpu() for batch in batches]
    each = microseconds(lambda: model.compute_logits(model.forward(batches[-1], kv)), model.device, repeats)
    return torch.cat(found), each


def _batch(device: torch.device, start: int, n: int) -> ForwardBatch:
    """n tokens of one sequence behind `start` others, each with its logits."""
    at = torch.arange(start, start + n)
    return ForwardBatch(
        ids=(7 + 5 * at).remainder(200).to(device), positions=at.expand(3, n).contiguous().to(device),
        media_rows=torch.empty(0, dtype=torch.int64, device=device), media_embeds=None, slots=at.to(device),
        block_tables=torch.zeros((1, 1), dtype=torch.int32, device=device), q_lens=(n,), kv_lens=(start + n,),
        sample_rows=torch.arange(n, device=device), prompt_lens=(_PROMPT,),
    )  # fmt: skip


@contextmanager
def _others(n: int, kind: Device, n_sizes: int, repeats: int, root: Path) -> Iterator[None]:
    """All ranks but the first run; they end with this process, however it ends."""
    with ExitStack() as kept:
        for rank in range(1, n):
            words = [str(word) for word in (rank, n, kind, n_sizes, repeats, root)]
            command = [sys.executable, "-m", "model.selftest.measured.ranks", *words]
            other = kept.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=sys.stderr))
            kept.callback(other.kill)
        yield


def main(argv: list[str]) -> None:
    """Any rank but the first: what it finds is not told."""
    rank, n, kind, n_sizes, repeats, root = argv
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    where, _ = resolve(_KINDS[kind], "bfloat16", rank=int(rank))
    run_rank(Teller(SECTION, lambda said: None), where, int(rank), int(n), int(n_sizes), int(repeats), Path(root))


def _end_with_the_first() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
