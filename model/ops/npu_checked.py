"""torch.ops.npu with the rules of npu_rules.py asked before each launch: for tests, and to find a fault."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from model.ops import npu_rules as rules


class CheckedOperators:
    """Has the operators of torch.ops.npu by their names. One whose arguments break a rule raises RuleError."""

    def __getattr__(self, name: str) -> Any:
        operator, check = getattr(torch.ops.npu, name), _CHECKS.get(name)
        return operator if check is None else _Checked(operator, check)


class _Checked:
    def __init__(self, operator: Any, check: Callable[..., None]) -> None:
        self._operator, self._check = operator, check

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._check(*args, **kwargs)
        return self._operator(*args, **kwargs)

    @property
    def out(self) -> "_Checked":
        """The overload that writes into tensors which are given: graphs capture it."""
        return _Checked(self._operator.out, _graph_attention)


def _attention(query: Tensor, key: Tensor, value: Tensor, **given: Any) -> None:
    lengths, kv_heads = given["actual_seq_lengths_kv"], given["num_key_value_heads"]
    # Rows of one token each, in layout BSND, have no lengths of queries.
    ends = given["actual_seq_lengths"] if given["input_layout"] == "TND" else list(range(1, query.shape[0] + 1))
    rules.check_lengths(ends, lengths)
    head_dim = query.shape[-1]
    if "block_table" in given:
        table, block_size = given["block_table"], given["block_size"]
        rules.check_paged(ends, lengths, table, block_size, given.get("atten_mask"), given["sparse_mode"])
        blocks = sum(-(-n // block_size) for n in lengths) if given["num_heads"] == kv_heads else 0
        rules.check_paged_keys(key, kv_heads, head_dim, block_size, blocks)
    else:
        rules.check_packed(key, kv_heads, head_dim, lengths)
    rules.check_attention(query, key, value, ends[-1])


def _graph_attention(query: Tensor, key: Tensor, value: Tensor, **given: Any) -> None:
    """Also of the question how large its workspace may become."""
    rules.check_graph_layout(given["input_layout"], given["num_heads"], given["num_key_value_heads"])
    if "workspace" in given:
        rules.check_workspace(given["workspace"])
    _attention(query, key, value, **given)


def _cache_write(*tensors: Tensor, cache_mode: str) -> None:
    rules.check_cache_write(*tensors)


def _norm(x: Tensor, weight: Tensor, epsilon: float) -> None:
    rules.check_norm(x, weight)


def _add_norm(x: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> None:
    rules.check_add_norm(x, residual, weight)


_CHECKS: Mapping[str, Callable[..., None]] = {
    "npu_fused_infer_attention_score": _attention,
    "_npu_fused_infer_attention_score_get_max_workspace": _graph_attention,
    "npu_scatter_pa_kv_cache": _cache_write,
    "npu_rms_norm": _norm,
    "npu_add_rms_norm": _add_norm,
    "npu_rotary_mul": rules.check_rotary,
    "npu_swiglu": rules.check_swiglu,
}
