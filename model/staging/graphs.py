"""Captured graphs of decode steps: one for each of a ladder of batch sizes, replayed in the place of 400 launches.

A graph reads and writes fixed memory. What changes from step to step reaches it in three ways: arrays through the
packed copy, which always lies at the same addresses; angles and scales, which are chosen on the host, through a copy
on the device; lengths, which attention takes from the host, through an update of every captured call. The update runs
on a stream of its own while the replay waits for it layer by layer; it begins when the replay before it has ended.
"""

import bisect
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from model.forward_batch import ForwardBatch, KVCache
from model.net.decoder import LayerInputs
from model.net.multimodal import MultimodalLM, Rotation
from model.ops.base import GraphAttention
from model.staging.layout import Padding, forward_arrays, forward_batch, in_order
from model.staging.packing import Packer

_log = logging.getLogger("pixelferry")
# CANN: an operator's host side refused its arguments, or streams and queues are used up (207008).
_REFUSED = re.compile(r"\b(?:[15]61|207)\d{3}\b")
_ARRAYS = ("ids", "slots", "sample_rows", "block_tables")  # of a batch: those that a graph reads


def is_refused(error: RuntimeError) -> bool:
    """Whether a device that captures no graphs said so: launched one by one its steps may run all the same."""
    return type(error) is RuntimeError and _REFUSED.search(str(error)) is not None


Refused = Callable[[str], str]
"""What this device refused, or "" -> what any rank's device refused, or ""."""


class GraphError(RuntimeError):
    """A graph would compute with something else than the step has."""


def graph_module(device: torch.device) -> Any | None:
    """Torch's module that captures graphs of `device`; None where steps are always launched one by one."""
    return torch.get_device_module(device) if device.type == "npu" else None


def ladder(most: int) -> tuple[int, ...]:
    """Batch sizes that are captured: powers of two, so that padding at most doubles a batch, and `most`."""
    return (*(1 << i for i in range((most - 1).bit_length())), most)


def reserved_blocks(most: int, block_size: int) -> int:
    """Blocks of the cache with a slot for each row of the largest graph: padding writes there, and nobody reads it."""
    return -(-most // block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where graphs find the cache."""

    n_blocks: int  # of the whole cache, its last ones reserved
    reserved: int
    block_size: int
    width: int  # of the block tables: blocks of the longest sequence


class DecodeGraphs:
    """One thread captures and replays; every replay is on the stream that is current then."""

    def __init__(
        self, model: MultimodalLM, kv: KVCache, packer: Packer, place: Place, sizes: Sequence[int], module: Any,
        refused: Refused = str,
    ) -> None:  # fmt: skip
        """Captures a graph of each size. packer: of the steps that will be replayed.

        refused: of ranks that capture together, asked for each size. Captures make calls to the other ranks, so that
        all go on to the next size, or none does.
        """
        self._model, self._module, self._place, self._sizes = model, module, place, sorted(sizes)
        self._replayed = module.Event()
        self._begun: _Captured | None = None  # what was replayed and not yet updated
        self._captured: dict[int, _Captured] = {}
        started = time.perf_counter()
        pool = attend = None
        for rows in reversed(self._sizes):  # whatever is captured later fits into the memory of the largest
            batch = _padding_alone(packer, self._padding(rows))
            attend = model.ops.graph_attention(batch.block_tables, place.block_size, attend)
            self._captured[rows] = _Captured(model, kv, batch, attend)
            pool = _on_all_ranks(refused, partial(self._captured[rows].capture, module, pool))
        taken = time.perf_counter() - started
        _log.info("captured graphs of decode steps (%s sequences) in %.1f s", ", ".join(map(str, self._sizes)), taken)

    def padding_for(self, sequences: int, table_blocks: int) -> Padding | None:
        """How a step of so many decodes is padded to the next graph; None: it is launched.

        table_blocks: that its sequences name together, shared ones counted for each. Padding rows name one more each,
        and where tables may name only so many together, there must not be more.
        """
        if sequences > self._sizes[-1]:
            return None
        rows = self._sizes[bisect.bisect_left(self._sizes, sequences)]
        most = self._model.ops.max_table_blocks(self._place.n_blocks, grouped=self._model.kv.grouped)
        return self._padding(rows) if most is None or table_blocks + rows - sequences <= most else None

    def replay(self, batch: ForwardBatch) -> Tensor:
        """Begin a padded step. -> [rows, hidden] before the head, valid until the next replay. Raises GraphError.

        It waits for `update`; what is launched on its result comes behind it.
        """
        captured = self._captured[len(batch.kv_lens)]
        captured.take(batch, self._model.rotation(batch))
        captured.updates_behind(self._replayed)
        captured.graph.replay()
        self._begun = captured
        self._replayed.record()
        return captured.states

    def update(self, kv_lens: Sequence[int]) -> float:
        """Give the replay that was begun its lengths, where one was. -> seconds that the host took. Raises GraphError.

        The host's longest work of a step: whatever else the device gets is launched before it.
        """
        started = time.perf_counter()
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.update(kv_lens)
        return time.perf_counter() - started

    def _padding(self, rows: int) -> Padding:
        place = self._place
        block = place.n_blocks - place.reserved
        return Padding(rows=rows, width=place.width, block=block, block_size=place.block_size)


class _Captured:
    """The graph of one batch size with all the memory that it reads and writes, which lives as long as it does."""

    graph: Any
    states: Tensor  # [rows, hidden]

    def __init__(self, model: MultimodalLM, kv: KVCache, batch: ForwardBatch, attend: GraphAttention) -> None:
        """batch: of padding rows alone, in the memory of the steps to come."""
        self._model, self._kv, self._batch, self._attend = model, kv, batch, attend
        rotation = model.rotation(batch)
        self._angles = rotation.angles
        self._scales = None if model.logn is None else torch.ones(batch.ids.shape, device=model.device)
        self._scaled = False  # some scale is not 1

    def capture(self, module: Any, pool: Any) -> Any:
        """-> the pool of memory that the next graph shares. Raises GraphError."""
        with torch.inference_mode(), _undone_where_refused(module):
            self._network()  # whatever an operator does only once is done before the capture
            self.graph = module.NPUGraph()
            with module.graph(self.graph, pool=pool, auto_dispatch_capture=True):
                self.states = self._network()
        self._check_calls()
        return self.graph.pool()

    def take(self, batch: ForwardBatch, rotation: Rotation) -> None:
        """What the step has besides the packed arrays, into the memory of the graph. Raises GraphError."""
        for name in _ARRAYS:
            mine, theirs = getattr(self._batch, name), getattr(batch, name)
            if theirs.shape != mine.shape or theirs.data_ptr() != mine.data_ptr():
                raise GraphError(f"{name} {list(theirs.shape)} is not where the graph reads it, {list(mine.shape)}")
        for held, angles in zip(self._angles, rotation.angles, strict=True):
            held.copy_(angles)
        if self._scales is not None and (self._scaled or rotation.scales is not None):
            self._scaled = rotation.scales is not None
            self._scales.copy_(rotation.scales) if rotation.scales is not None else self._scales.fill_(1)

    def updates_behind(self, replayed: Any) -> None:
        """Nothing is updated before this event: until then a replay may still read it."""
        self.graph.graph_dispatch_mode.update_stream.wait_event(replayed)

    def update(self, kv_lens: Sequence[int]) -> None:
        """The lengths of the replay that was begun last: each of its attention calls waits for them."""
        lengths = self._attend.update(kv_lens)
        self._check_names(lengths)
        self.graph.update(cpu_update_input=[lengths])

    def _network(self) -> Tensor:
        model, batch = self._model, self._batch
        step = LayerInputs(angles=self._angles, query_scale=self._scales, slots=batch.slots, attend=self._attend)
        return model.decoder(model.embeddings(batch.ids), self._kv, step, batch.sample_rows)

    def _check_calls(self) -> None:
        """Every layer's attention was captured as a call that can be updated. Raises GraphError."""
        calls = self.graph.graph_dispatch_mode.graph_dispatch_records
        layers = self._model.kv.layers
        if [call.op_cache_entry.__name__ for call in calls] != [self._attend.operator] * layers:
            names = sorted({call.op_cache_entry.__name__ for call in calls})
            raise GraphError(f"captured {len(calls)} calls of {names}, not {layers} of {self._attend.operator}")
        self._names = frozenset.intersection(*(frozenset(call.kwargs) for call in calls))

    def _check_names(self, lengths: Mapping[str, object]) -> None:
        """torch_npu passes over a name that the captured call does not have. Raises GraphError."""
        if not self._names.issuperset(lengths):
            raise GraphError(f"the captured attention has no {sorted(set(lengths) - self._names)}")


def _on_all_ranks(refused: Refused, capture: Callable[[], Any]) -> Any:
    """What it gives. Raises the RuntimeError that `is_refused` knows on every rank where one device refuses it."""
    mine: RuntimeError | None = None
    pool = None
    try:
        pool = capture()
    except RuntimeError as error:
        if not is_refused(error):
            raise
        mine = error
    said = refused(str(mine) if mine else "")
    if said:
        raise mine or RuntimeError(said)
    return pool


@contextmanager
def _undone_where_refused(module: Any) -> Iterator[None]:
    """torch_npu leaves its stream and its dispatch mode on where a capture does not begin or does not end."""
    stream, modes = module.current_stream(), len(_get_current_dispatch_mode_stack())
    try:
        yield
    except RuntimeError:
        module.set_stream(stream)
        while len(_get_current_dispatch_mode_stack()) > modes:
            _get_current_dispatch_mode_stack()[-1].__exit__(None, None, None)
        raise


def _padding_alone(packer: Packer, padding: Padding) -> ForwardBatch:
    """A step of padding rows, where every step of these sizes lies."""
    packing = packer.open(in_order(padding.layout()))
    padding.write(forward_arrays(packing.host), 0)
    ones = (1,) * padding.rows
    return forward_batch(forward_arrays(packing.send()), q_lens=ones, kv_lens=ones, prompt_lens=ones)
