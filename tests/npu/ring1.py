"""Ring 1: each kernel of the real torch_npu runs, then numbers that the CPU computed fill its outputs.

The kernel's checks of its arguments, the allocation of its outputs and the name that it launches stay real. What it
launches does nothing (see stub/), so the outputs are computed here, over the same memory: those of an aten operator by
the CPU's kernel, those of one of torch_npu's by its reference. What goes into a graph is computed when that runs.
"""

import ctypes
import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from tests.npu.graph_references import GRAPH_REFERENCES
from tests.npu.references import REFERENCES
from tests.npu.stub.counts import launched
from tests.npu.stub.graphs import defer, defers

Reference = Callable[..., Any]

_QUEUED = os.environ["TASK_QUEUE_ENABLE"] != "0"
_KEY = "PrivateUse1"
_KEYS: Any = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)
_COMPOSITE = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
_LIBRARIES: dict[str, torch.library.Library] = {}  # what they registered lives as long as they do
_COPIES = frozenset({"aten::_copy_from", "aten::_copy_from_and_resize"})  # the CPU has neither; copy_ is wrapped itself
_OTHER_DTYPE = frozenset({"native_layer_norm"})  # its statistics are float32; those of the CPU have the input's dtype


def install() -> None:
    """Wrap every kernel of the device that torch and torch_npu have, once per process.

    An operator of torch_npu without a reference raises RuntimeError when it launches something. The references become
    the operators' kernels for the CPU as well, so that ring 0 runs beside ring 1.
    """
    _LIBRARIES.update({space: torch.library.Library(space, "IMPL") for space in ("aten", "npu")})
    references = REFERENCES | GRAPH_REFERENCES
    names = torch._C._dispatch_get_registrations_for_dispatch_key(_KEY)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        for name in sorted(names):
            op = _operator(name)
            if op is None or name in _COPIES or name.partition("::")[0] not in _LIBRARIES:
                continue
            space, _, own = name.partition("::")
            reference = references.get(own) if space == "npu" else op
            real = torch.library.get_kernel(op, _KEY)
            _LIBRARIES[space].impl(own, _wrapped(op, real, reference), _KEY, allow_override=True)
        for own, reference in references.items():
            _LIBRARIES["npu"].impl(own, reference, "CPU")
    _forbid_fall_backs()


def _forbid_fall_backs() -> None:
    """An operator without a kernel of the device raises RuntimeError; torch_npu would run it on the CPU.

    Its own switch for that, TORCH_NPU_FALLBACK_CPU_DISABLE, does nothing in 2.10.0.post4.
    """
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::") and has(name, "CPU") and not any(has(name, key) for key in (_KEY, *_COMPOSITE)):
            _LIBRARIES["aten"].impl(name.partition("::")[2], _without_kernel(name), _KEY)


def _without_kernel(name: str) -> Callable[..., Any]:
    def run(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{name} has no kernel for the device: torch_npu would compute it on the CPU")

    return run


def _operator(name: str) -> Any:
    space, _, own = name.partition("::")
    base, _, overload = own.partition(".")
    return getattr(getattr(getattr(torch.ops, space), base, None), overload or "default", None)


def _wrapped(op: Any, real: Any, reference: Reference | None) -> Callable[..., Any]:
    schema = op._schema
    base = schema.name.partition("::")[2]
    takes_tensor = [str(argument.type) in ("Tensor", "Optional[Tensor]") for argument in schema.arguments]
    # The schema of attention into given outputs does not say that it writes into them.
    writes = schema.overload_name == "out" or any(
        argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments
    )

    def run(*args: Any, **kwargs: Any) -> Any:
        before = launched()
        # Python's numbers arrive bare where the schema has a tensor.
        boxed = [_tensor(value) if wants else value for value, wants in zip(args, takes_tensor, strict=False)]
        outputs = real.call_boxed(_KEYS, *boxed, *args[len(boxed) :], **kwargs)
        if _QUEUED:
            _launch_what_is_queued()
        if launched() == before:  # a view, an allocation, a copy: the stub did all there was to do
            return outputs
        if reference is None:
            raise RuntimeError(f"{schema.name} launched something, and ring 1 has no reference for it")
        in_place = writes or not schema.returns
        compute = partial(_compute, base, reference, on_host(args), _host_options(on_host(kwargs)))
        if defers():
            defer(partial(compute, None if in_place else on_host(outputs)))
        else:
            compute(None if in_place else outputs)
        return outputs

    return run


def _launch_what_is_queued() -> None:
    """torch_npu's own queue launches beside the host; what it computes, Python must know. Raises what it says of it."""
    torch.get_device_module("npu").current_stream().npu_stream  # noqa: B018 - asking for the driver's stream empties it


def on_host(values: Any) -> Any:
    """The values with every tensor of the device as a CPU tensor over the same memory."""
    return tree_map_only(Tensor, _alias, values)


def _alias(x: Tensor) -> Tensor:
    if x.device.type != "npu":
        return x
    if x.numel() == 0:
        return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype)
    storage = x.untyped_storage()
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    same = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=x.dtype).set_(same, x.storage_offset(), x.size(), x.stride())


def _tensor(value: Any) -> Any:
    return torch.tensor(value) if isinstance(value, int | float | bool) else value


def _host_options(kwargs: dict[str, Any]) -> dict[str, Any]:
    instead = {"device": torch.device("cpu"), "pin_memory": None}
    return {name: instead[name] if name in instead and value is not None else value for name, value in kwargs.items()}


def _compute(base: str, reference: Reference, args: Any, kwargs: dict[str, Any], outputs: Any) -> None:
    """Over the memory of the device. outputs: what the kernel allocated, None where it is done in place.

    Raises RuntimeError where shapes or dtypes differ.
    """
    computed = reference(*args, **kwargs)
    if outputs is None:
        return
    for mine, theirs in zip(tree_leaves(outputs), tree_leaves(computed), strict=True):
        if not isinstance(mine, Tensor):
            continue
        if mine.shape != theirs.shape or (mine.dtype != theirs.dtype and base not in _OTHER_DTYPE):
            raise RuntimeError(
                f"{base}: the device's kernel allocated {mine.dtype} {list(mine.shape)}, "
                f"its reference gave {theirs.dtype} {list(theirs.shape)}"
            )
        _alias(mine).copy_(theirs)
