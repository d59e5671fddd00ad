"""Which of torch's own operators a piece of code runs, and which of them an NPU computes otherwise."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

COMPUTED_OTHERWISE = {
    "aten::gelu": "tanh, whatever is asked for; exact is npu_gelu",
    "aten::scaled_dot_product_attention": "is_causal is aligned to the left",
}
"""Operators that no network may run there, and why."""

_NO_LAUNCH = ("aten::empty", "aten::detach", "aten::lift_fresh", "aten::new_empty")
_WHOLE = {"aten::linear", *COMPUTED_OTHERWISE}  # composites that an NPU has a kernel of its own for, or that count here


class _Recorder(TorchDispatchMode):
    def __init__(self, names: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = names

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and loading the compiler takes seconds

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
        if composite and name not in _WHOLE:
            with self:
                return func.decompose(*args, **(kwargs or {}))
        views = any(out.alias_info is not None and not out.alias_info.is_write for out in func._schema.returns)
        if not views and not name.startswith(_NO_LAUNCH):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


class _Dtypes(TorchDispatchMode):
    """Composites are left whole, for a device may have a kernel of its own for them."""

    def __init__(self, wanted: Collection[str], found: list[tuple[str, frozenset[torch.dtype]]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._wanted, self._found = wanted, found

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as above

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        there = [x.dtype for x in args if isinstance(x, torch.Tensor) and x.device.type != "cpu"]
        if there and func._schema.name in self._wanted:
            self._found.append((func._schema.name, frozenset(there)))
        return func(*args, **(kwargs or {}))


@contextmanager
def dtypes_given(*names: str) -> Iterator[list[tuple[str, frozenset[torch.dtype]]]]:
    """To operators of these names on a device: one entry a call, in order."""
    found: list[tuple[str, frozenset[torch.dtype]]] = []
    with _Dtypes(names, found):
        yield found


@contextmanager
def recorded() -> Iterator[list[str]]:
    """The operators that launch something on a device, in order; views and allocations do not."""
    names: list[str] = []
    with _Recorder(names):
        yield names


def assert_none_computed_otherwise(run: Callable[[], object]) -> None:
    with recorded() as names:
        run()
    found = {name: COMPUTED_OTHERWISE[name] for name in names if name in COMPUTED_OTHERWISE}
    assert not found, found
