"""The operators that model/ops/npu.py calls: their schemas, word for word, and the shapes of what they return.

The schemas are those that the dispatcher shows once the wheels of torch_npu 2.10.0.post4 and 2.13.0 are loaded; the
shapes are those that the vendor documents. Whoever loads a wheel can compare both.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

SCHEMAS: dict[str, str] = {
    "npu_fused_infer_attention_score": (
        "npu_fused_infer_attention_score(Tensor query, Tensor key, Tensor value, *, Tensor? pse_shift=None, Tensor? "
        "atten_mask=None, SymInt[]? actual_seq_lengths=None, SymInt[]? actual_seq_lengths_kv=None, Tensor? "
        "dequant_scale1=None, Tensor? quant_scale1=None, Tensor? dequant_scale2=None, Tensor? quant_scale2=None, "
        "Tensor? quant_offset2=None, Tensor? antiquant_scale=None, Tensor? antiquant_offset=None, Tensor? "
        "key_antiquant_scale=None, Tensor? key_antiquant_offset=None, Tensor? value_antiquant_scale=None, Tensor? "
        "value_antiquant_offset=None, Tensor? block_table=None, Tensor? query_padding_size=None, Tensor? "
        "kv_padding_size=None, Tensor? key_shared_prefix=None, Tensor? value_shared_prefix=None, SymInt[]? "
        "actual_shared_prefix_len=None, Tensor? query_rope=None, Tensor? key_rope=None, Tensor? "
        "key_rope_antiquant_scale=None, int num_heads=1, float scale=1., int pre_tokens=2147483647, int "
        'next_tokens=2147483647, str input_layout="BSH", int num_key_value_heads=0, int sparse_mode=0, int '
        "inner_precise=0, int block_size=0, int antiquant_mode=0, int key_antiquant_mode=0, int "
        "value_antiquant_mode=0, bool softmax_lse_flag=False) -> (Tensor, Tensor)"
    ),
    "npu_scatter_pa_kv_cache": (
        "npu_scatter_pa_kv_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor "
        "slot_mapping, *, Tensor? compress_lens=None, Tensor? compress_seq_offsets=None, Tensor? seq_lens=None, "
        'str? cache_mode="PA_NZ") -> ()'
    ),
    "npu_rms_norm": (
        "npu_rms_norm(Tensor input, Tensor gamma, float epsilon=9.9999999999999995e-07) -> (Tensor, Tensor)"
    ),
    "npu_add_rms_norm": (
        "npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, float epsilon=9.9999999999999995e-07) -> (Tensor, "
        "Tensor, Tensor)"
    ),
    "npu_rotary_mul": (
        'npu_rotary_mul(Tensor input, Tensor r1, Tensor r2, str rotary_mode="half", Tensor? rotate=None) -> Tensor'
    ),
    "npu_swiglu": ("npu_swiglu(Tensor input, int dim=-1) -> Tensor"),
    "npu_fast_gelu": ("npu_fast_gelu(Tensor input) -> Tensor"),
    "npu_gelu": ('npu_gelu(Tensor input, *, str approximate="none") -> Tensor'),
}

_TAKEN, _, _ = SCHEMAS["npu_fused_infer_attention_score"].partition("(")[2].rpartition(") ->")

GRAPH_SCHEMAS: dict[str, str] = {
    "npu_fused_infer_attention_score.out": (
        f"npu_fused_infer_attention_score.out({_TAKEN}, Tensor? workspace=None, Tensor[] out) -> (Tensor, Tensor)"
    ),
    "_npu_fused_infer_attention_score_get_max_workspace": (
        f"_npu_fused_infer_attention_score_get_max_workspace({_TAKEN}) -> Tensor"
    ),
}
"""What a graph of decode steps captures in the place of the first: outputs and workspace are its caller's."""

Spec = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of one output."""


def _attention(query: Tensor, key: Tensor, value: Tensor, **_: Any) -> tuple[Spec, ...]:
    """Layout TND. The second output is empty, since nobody asks for the softmax's sums."""
    return (tuple(query.shape), query.dtype), ((0,), torch.float32)


def _nothing(*_: Any, **__: Any) -> tuple[Spec, ...]:
    return ()


def _like_first(x: Tensor, *_: Any, **__: Any) -> tuple[Spec, ...]:
    return ((tuple(x.shape), x.dtype),)


def _rstd(x: Tensor, gamma: Tensor) -> Spec:
    kept = x.dim() - gamma.dim()
    return (*x.shape[:kept], *(1,) * gamma.dim()), torch.float32


def _rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Spec, ...]:
    return (tuple(x.shape), x.dtype), _rstd(x, gamma)


def _add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Spec, ...]:
    return (tuple(x1.shape), x1.dtype), _rstd(x1, gamma), (tuple(x1.shape), x1.dtype)


def _swiglu(x: Tensor, dim: int = -1) -> tuple[Spec, ...]:
    shape = list(x.shape)
    shape[dim] //= 2
    return ((tuple(shape), x.dtype),)


OUTPUTS: dict[str, Callable[..., tuple[Spec, ...]]] = {
    "npu_fused_infer_attention_score": _attention,
    "npu_scatter_pa_kv_cache": _nothing,
    "npu_rms_norm": _rms_norm,
    "npu_add_rms_norm": _add_rms_norm,
    "npu_rotary_mul": _like_first,
    "npu_swiglu": _swiglu,
    "npu_fast_gelu": _like_first,
    "npu_gelu": _like_first,
}
"""For the arguments of each operator: what it returns, in order. npu_scatter_pa_kv_cache writes in place."""
