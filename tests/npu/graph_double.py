"""Ring 0's graphs: what torch_npu's module for graphs does to tensors, on the CPU and without torch_npu.

A replay computes when its lengths were updated, and not before, since each of its attention calls waits for that. What
was captured is held as a device holds it: memory that was made during the capture stays, all other memory only by its
address, and whoever frees it early finds that. Errors have CANN's numbers.
"""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_UPDATED = "npu_fused_infer_attention_score.out"
_READ_BACK = frozenset({"aten::item", "aten::_local_scalar_dense"})


class Event:
    """When it was recorded last, counted in replays of all graphs."""

    at = 0

    def record(self) -> None:
        self.at = GraphDouble.replays


class UpdateStream:
    fence = 0  # replays that it waited for

    def wait_event(self, event: Event) -> None:
        self.fence = event.at


@dataclass(slots=True, kw_only=True)
class Call:
    """One captured operator."""

    func: Any
    args: Any
    kwargs: dict[str, Any]
    out: Any

    @property
    def op_cache_entry(self) -> Any:
        return self.func

    def run(self) -> None:
        found = self.func(*tree_map(_found, self.args), **tree_map(_found, self.kwargs))
        for mine, new in zip(tree_leaves(self.out), tree_leaves(found), strict=True):
            if isinstance(mine, Tensor) and mine.data_ptr() != new.data_ptr():
                mine.copy_(new)


@dataclass(slots=True, kw_only=True)
class DispatchMode:
    update_stream: UpdateStream = field(default_factory=UpdateStream)
    graph_dispatch_records: list[Call] = field(default_factory=list)


class NPUGraph:
    def __init__(self) -> None:
        self.graph_dispatch_mode = DispatchMode()
        self.calls: list[Call] = []
        self._waits = False
        self._behind = _Behind()
        self._before = 0  # the replay before the one that waits, counted over all graphs
        self._last = 0

    def pool(self) -> None:
        """One memory for all graphs is not shown here."""

    def replay(self) -> None:
        if self._waits:
            raise RuntimeError("error code is 107020: a replay was never updated")
        GraphDouble.replays += 1
        self._before, self._last, self._waits = self._last, GraphDouble.replays, True
        self._behind = _Behind()
        GraphDouble.waiting.append(self._behind)
        self._behind.__enter__()  # type: ignore[no-untyped-call]

    def update(self, cpu_update_input: Sequence[dict[str, Any]]) -> None:
        (given,) = cpu_update_input
        if self.graph_dispatch_mode.update_stream.fence < self._before:
            raise RuntimeError("error code is 507011: the replay before may still run")
        for call in self.graph_dispatch_mode.graph_dispatch_records:
            call.kwargs.update({name: value for name, value in given.items() if name in call.kwargs})
        if self._waits:
            self._waits = False
            GraphDouble.drop()
            for call in (*self.calls, *self._behind.calls):
                call.run()


class _Behind(TorchDispatchMode):
    """What is launched while a replay waits: it computes something at once, for its shapes, and anew in its turn."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in _READ_BACK:
            raise RuntimeError("error code is 107020: somebody waits for a replay that nobody has updated")
        out = func(*args, **(kwargs or {}))
        self.calls.append(Call(func=func, args=args, kwargs=kwargs or {}, out=out))
        return out


class _Capture(TorchDispatchMode):
    def __init__(self, graph: NPUGraph) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph = graph
        self._made: set[int] = set()  # addresses of storages

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and loading the compiler takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in _READ_BACK:
            raise RuntimeError("error code is 107027: a blocking call in a capture")
        out = func(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        outputs = {x.untyped_storage().data_ptr() for x in tree_leaves(out) if isinstance(x, Tensor)}
        call = Call(func=func, args=self._held(args), kwargs=self._held(kwargs or {}), out=out)
        self._made |= outputs - given
        self._graph.calls.append(call)
        if func.__name__ == _UPDATED:
            self._graph.graph_dispatch_mode.graph_dispatch_records.append(call)
        return out

    def _held(self, values: Any) -> Any:
        def hold(x: Any) -> Any:
            outside = isinstance(x, Tensor) and x.untyped_storage().data_ptr() not in self._made
            return _Address(x) if outside else x

        return tree_map(hold, values)


class _Address:
    """A tensor whose memory somebody else must keep."""

    def __init__(self, x: Tensor) -> None:
        self._storage = weakref.ref(x.untyped_storage())
        self._like = x.dtype, x.storage_offset(), x.size(), x.stride()

    def tensor(self) -> Tensor:
        storage = self._storage()
        if storage is None:
            raise RuntimeError("error code is 507011: memory that was captured is freed")
        dtype, *place = self._like
        return torch.empty(0, dtype=dtype).set_(storage, *place)


def _found(value: Any) -> Any:
    return value.tensor() if isinstance(value, _Address) else value


class GraphDouble:
    """In the place of torch.npu."""

    NPUGraph = NPUGraph
    Event = Event
    replays = 0

    waiting: ClassVar[list[_Behind]] = []

    @classmethod
    def drop(cls) -> None:
        """What waits behind a replay is no longer caught."""
        while cls.waiting:
            cls.waiting.pop().__exit__(None, None, None)  # type: ignore[no-untyped-call]

    @staticmethod
    def current_stream() -> None:
        """A CPU has one."""

    @staticmethod
    def set_stream(stream: None) -> None:
        """It stays."""

    @staticmethod
    @contextmanager
    def graph(graph: Any, pool: None = None, auto_dispatch_capture: bool = False) -> Iterator[None]:
        assert auto_dispatch_capture
        with _Capture(graph):
            yield
