"""Decode graphs: what a replay gives against the same step launched, what both take, and a replay nobody updates."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from configs.checkpoint import Checkpoint
from configs.serve import EngineConfig
from model.device import first_line
from model.engine.kv_cache_size import cache_size
from model.engine.runner import captured, reserved_for_graphs
from model.forward_batch import ForwardBatch, KVCache
from model.net.multimodal import MultimodalLM
from model.ops.base import Ops
from model.registry import family_of
from model.selftest.attention_cases import BLOCK
from model.selftest.host import MAX_MODEL_LEN, MAX_SEQS
from model.selftest.operators import TOLERANCES, difference, microseconds
from model.selftest.rows import CaseResult
from model.selftest.teller import Teller
from model.staging.graphs import DecodeGraphs, graph_module, ladder
from model.staging.layout import Padding, forward_arrays, forward_batch, in_order, packed_bytes
from model.staging.packing import Packer
from model.staging.streams import open_streams
from model.weights import Weights

SECTION = "graphs"
STALE = "stale"
_LENGTHS = (1, 2, 37, 127, 128, 129, 500)  # of sequences in the cache, in turn, and the longest
_LONG = tuple(1025 + 61 * i for i in range(63))  # beside one that is longer
_STALE_SECONDS = 60.0
_NOT_HERE = "not here: graphs are captured on NPUs alone"


@torch.inference_mode()
def check_graphs(
    tell: Teller, name: str, path: Path, ops: Ops, turns: int, repeats: int, *, longest: int = MAX_MODEL_LEN,
    most: int = MAX_SEQS,
) -> None:  # fmt: skip
    """A row for each captured size of the model at `path`; of the largest alone where `longest` is another.

    turns: steps that are compared, of other lengths each. longest: tokens of a sequence, as wide as the tables are;
    most: sequences of the largest size.
    """
    if graph_module(ops.device) is None:
        tell.skip(name, _NOT_HERE)
        return
    tell.begin(f"{name}, capture")
    started = time.perf_counter()
    steps = _Steps(build_at(path, ops), longest, most)
    taken = time.perf_counter() - started
    dtype = str(ops.dtype).removeprefix("torch.")
    told = CaseResult(section=SECTION, name=name, case="capture", dtype=dtype, verdict="pass", figures={"s": taken},
               note=f"sizes {', '.join(map(str, steps.sizes))}")  # fmt: skip
    tell.send(told)
    for rows in steps.sizes if longest == MAX_MODEL_LEN else steps.sizes[-1:]:
        tell.attempt(name, partial(steps.compare, name, rows, turns, repeats), _sequences(rows), dtype)


def check_stale(tell: Teller, ops: Ops) -> None:
    """Whether a replay that nobody updates waits for ever: this process is then ended from outside."""
    name = "replay without update"
    module = graph_module(ops.device)
    if module is None:
        tell.skip(name, _NOT_HERE)
        return
    tell.begin(name, _STALE_SECONDS, may_hang=True)
    table = torch.zeros(1, 2, dtype=torch.int32, device=ops.device)
    caches = ops.kv_cache(2, BLOCK, 1, 128)
    query = torch.ones(1, 2, 128, dtype=ops.dtype, device=ops.device)
    attend, graph = ops.graph_attention(table, BLOCK), module.NPUGraph()
    with torch.inference_mode():
        attend(query, *caches)
        with module.graph(graph, auto_dispatch_capture=True):
            attend(query, *caches)
    try:
        graph.replay()
        module.synchronize(ops.device)
        note = "ends: it runs with the lengths of its capture"
    except RuntimeError as error:
        note = f"an error: {first_line(error)}"
    tell.send(CaseResult(section=STALE, name=name, verdict="told", note=note))


def build_at(path: Path, ops: Ops) -> MultimodalLM:
    checkpoint = Checkpoint(path)
    family = family_of(checkpoint)
    return family.build(checkpoint, Weights(checkpoint, family.renames, ops.dtype, ops.device, family.skips), ops)


def _sequences(n: int) -> str:
    return "1 sequence" if n == 1 else f"{n} sequences"


class _Steps:
    """Decode steps over a cache full of noise, each of which can be launched and replayed."""

    def __init__(self, model: MultimodalLM, longest: int, most: int) -> None:
        """Captures all sizes."""
        self._lengths = (*_LENGTHS, longest) if longest == MAX_MODEL_LEN else (longest, *_LONG)
        blocks = [-(-self._lengths[i % len(self._lengths)] // BLOCK) for i in range(most + len(self._lengths))]
        config = EngineConfig(device="npu", max_seqs=most, block_size=BLOCK)
        reserved = reserved_for_graphs(config, model.device)
        block_bytes = model.kv.bytes_per_token(model.dtype.itemsize) * BLOCK
        config = msgspec.structs.replace(config, kv_cache_bytes=(sum(blocks) + reserved) * block_bytes)
        size = cache_size(model.kv, model.dtype.itemsize, config, longest, reserved=reserved)
        self.sizes: Sequence[int] = ladder(most)
        self._model, self._width = model, longest // BLOCK
        self._kv: KVCache = model.kv_cache(size.n_blocks, BLOCK)
        for cache in (half for layer in self._kv for half in layer):
            cache.normal_()
        most = packed_bytes(self._padding(most).layout())
        self._packer = Packer(open_streams(model.device), most)
        graphs = captured(model, self._kv, size, config, self._packer, may_refuse=False)
        assert graphs is not None
        self._graphs: DecodeGraphs = graphs

    def compare(self, name: str, rows: int, turns: int, repeats: int) -> CaseResult:
        error, note = 0.0, "bit for bit"
        for turn in range(turns):
            batch = self._batch(rows, [self._lengths[(3 * turn + i) % len(self._lengths)] for i in range(rows)])
            wanted = self._model.forward(batch, self._kv).cpu()
            found = self._replay(batch).cpu()
            apart, wrong = difference([found], [wanted], self._model.dtype)
            if wrong:
                raise ValueError(wrong)
            error = max(error, apart or 0.0)
            note = note if torch.equal(found, wanted) else "not the same bits"
        tolerance = TOLERANCES[self._model.dtype]
        launched = microseconds(lambda: self._model.forward(batch, self._kv), self._model.device, repeats)
        replayed = microseconds(lambda: self._replay(batch), self._model.device, repeats)
        update = self._update * 1e6
        return CaseResult(
            section=SECTION, name=name, case=_sequences(rows), dtype=str(self._model.dtype).removeprefix("torch."),
            verdict="pass" if error <= tolerance else "fail", error=error, tolerance=tolerance, note=note,
            microseconds=replayed,
            figures={"us launched": launched, "us of update": update, "a layer": update / self._model.kv.layers},
        )  # fmt: skip

    def _replay(self, batch: ForwardBatch) -> Tensor:
        states = self._graphs.replay(batch)
        self._update = self._graphs.update(batch.kv_lens)  # seconds
        return states

    def _padding(self, rows: int) -> Padding:
        return Padding(rows=rows, width=self._width, block=0, block_size=BLOCK)

    def _batch(self, rows: int, lengths: Sequence[int]) -> ForwardBatch:
        """One new token for each of `rows` sequences, which have their own blocks."""
        packing = self._packer.open(in_order(self._padding(rows).layout()))
        host = forward_arrays(packing.host)
        block = 0
        for i, length in enumerate(lengths):
            host.ids[i], host.positions[:, i] = 7 + i, length - 1
            last = (length - 1) // BLOCK
            host.block_tables[i] = 0
            host.block_tables[i, : last + 1] = range(block, block + last + 1)
            host.slots[i] = (block + last) * BLOCK + (length - 1) % BLOCK
            block += last + 1
            host.sample_rows[i] = i
        ones = (1,) * rows
        return forward_batch(forward_arrays(packing.send()), q_lens=ones, kv_lens=tuple(lengths), prompt_lens=ones)
