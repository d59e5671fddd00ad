"""What ring 0 takes for granted about each operator, asked of the real wheel: its schema, and the shapes it returns."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from tests.npu.schemas import GRAPH_SCHEMAS, OUTPUTS, SCHEMAS

pytestmark = pytest.mark.npu

Call = tuple[tuple[Any, ...], dict[str, Any]]


def _attention(dtype: torch.dtype) -> Call:
    """A chunk with a past and a decode over a paged cache."""
    query, cache = torch.randn(6, 4, 64), torch.randn(4, 128, 2 * 64)
    fixed = {"input_layout": "TND", "num_heads": 4, "num_key_value_heads": 2, "scale": 0.125}
    lengths = {"actual_seq_lengths": [5, 6], "actual_seq_lengths_kv": [130, 7]}
    paged = {"block_table": torch.tensor([[2, 0], [1, 0]], dtype=torch.int32), "block_size": 128, "sparse_mode": 3}
    mask = torch.ones(2048, 2048, dtype=torch.int8).triu(1)
    return (query.to(dtype), cache.to(dtype), cache.to(dtype)), {**fixed, **lengths, **paged, "atten_mask": mask}


def _cache_write(dtype: torch.dtype) -> Call:
    key, cache = torch.randn(3, 2, 64).to(dtype), torch.zeros(4, 128, 2, 64, dtype=dtype)
    return (key, key * 2, cache, cache.clone(), torch.tensor([5, 300, 128])), {"cache_mode": "Norm"}


def _norm(dtype: torch.dtype) -> Call:
    return (torch.randn(5, 48).to(dtype), torch.randn(48).to(dtype)), {"epsilon": 1e-6}


def _add_norm(dtype: torch.dtype) -> Call:
    return (torch.randn(5, 48).to(dtype), torch.randn(5, 48).to(dtype), torch.randn(48).to(dtype)), {"epsilon": 1e-6}


def _rotary(dtype: torch.dtype) -> Call:
    angles = torch.randn(5, 1, 32)
    return (torch.randn(5, 3, 32).to(dtype), angles.cos().to(dtype), angles.sin().to(dtype)), {}


def _rows(dtype: torch.dtype) -> Call:
    return (torch.randn(5, 48).to(dtype),), {}


CALLS: dict[str, Callable[[torch.dtype], Call]] = {
    "npu_fused_infer_attention_score": _attention,
    "npu_scatter_pa_kv_cache": _cache_write,
    "npu_rms_norm": _norm,
    "npu_add_rms_norm": _add_norm,
    "npu_rotary_mul": _rotary,
    "npu_swiglu": _rows,
    "npu_fast_gelu": _rows,
    "npu_gelu": _rows,
}


def test_every_operator_is_called_here() -> None:
    assert set(CALLS) == set(SCHEMAS) == set(OUTPUTS)


@pytest.mark.parametrize("name", CALLS)
def test_the_schema(name: str) -> None:
    assert str(_operator(name)._schema) == f"npu::{SCHEMAS[name]}"


@pytest.mark.parametrize("name", GRAPH_SCHEMAS)
def test_the_schema_of_what_a_graph_captures(name: str) -> None:
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.npu, packet), overload or "default")
    assert str(operator._schema) == f"npu::{GRAPH_SCHEMAS[name]}"


@pytest.mark.parametrize("name", CALLS)
def test_what_it_returns(name: str, npu: torch.device) -> None:
    """The wheel's shape inference, and what its kernel allocates on the device, are what the table says."""
    args, kwargs = CALLS[name](torch.bfloat16)
    table = [(tuple(shape), kind) for shape, kind in OUTPUTS[name](*args, **kwargs)]
    assert _returned(name, torch.device("meta"), args, kwargs) == table
    assert _returned(name, npu, args, kwargs) == table


def _returned(name: str, device: torch.device, args: Any, kwargs: Any) -> list[tuple[tuple[int, ...], torch.dtype]]:
    args, kwargs = tree_map_only(Tensor, lambda x: x.to(device), (args, kwargs))
    found = _operator(name)(*args, **kwargs)
    return [(tuple(x.shape), x.dtype) for x in tree_leaves(found) if isinstance(x, Tensor)]


def _operator(name: str) -> Any:
    return getattr(torch.ops.npu, name).default
