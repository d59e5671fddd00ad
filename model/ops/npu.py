"""Ops over the fused operators of Ascend NPUs (Atlas A2 and A3), in bfloat16.

All of them are reached as torch.ops.npu, which torch_npu fills when model/device.py imports it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from configs.checkpoint import CheckpointError
from model.ops import npu_rules as rules
from model.ops.base import GraphAttention, PagedAttention
from model.ops.collectives import ALONE, Ranks
from model.ops.npu_checked import CheckedOperators
from model.ops.torch_ops import TorchOps

_FRACTAL_NZ = 29  # of aclFormat


class NpuOps(TorchOps):
    """What TorchOps leaves as it is: linear, layer_norm, add_layer_norm, relu_squared, copy_blocks."""

    def __init__(
        self, device: torch.device, dtype: torch.dtype, *, checks: bool = False, bounds_tables: bool = True,
        ranks: Ranks = ALONE,
    ) -> None:  # fmt: skip
        """Raises RuleError for a dtype that the operators do not take.

        checks: the documented rules are asked before every launch, which then may raise RuleError; else only what holds
        for a whole network or step is. bounds_tables: False leaves out the documented rule of `max_table_blocks`, to
        see what a device makes of it; then without `checks`.
        """
        rules.check_dtype(dtype)
        super().__init__(device, dtype, ranks)
        self._npu: Any = CheckedOperators() if checks else torch.ops.npu
        self._bounds_tables = bounds_tables
        self.prepacks = False
        side = rules.CAUSAL_MASK
        self._causal = torch.ones((side, side), dtype=torch.int8).triu_(1).to(device)  # 1: not seen

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        normed: Tensor = self._npu.npu_rms_norm(x, weight, epsilon=eps)[0]
        return normed

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        normed, _, total = self._npu.npu_add_rms_norm(x, residual, weight, epsilon=eps)
        return normed, total

    def rotary_angles(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return cos.to(self.dtype)[:, None], sin.to(self.dtype)[:, None]  # [T, 1, d]

    def rotary(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turned: Tensor = self._npu.npu_rotary_mul(x, cos, sin)
        return turned

    def swiglu(self, gate_up: Tensor) -> Tensor:
        out: Tensor = self._npu.npu_swiglu(gate_up)
        return out

    def quick_gelu(self, x: Tensor) -> Tensor:
        out: Tensor = self._npu.npu_fast_gelu(x)
        return out

    def gelu(self, x: Tensor) -> Tensor:
        # Not F.gelu: on an NPU it computes the tanh approximation, whatever is asked for.
        out: Tensor = self._npu.npu_gelu(x, approximate="none")
        return out

    def gelu_tanh(self, x: Tensor) -> Tensor:
        out: Tensor = self._npu.npu_gelu(x, approximate="tanh")
        return out

    def check_heads(self, heads: int, kv_heads: int, head_dim: int) -> None:
        with _refused_at_start():
            rules.check_heads(heads, kv_heads, head_dim)

    def padded_head_dim(self, head_dim: int) -> int:
        with _refused_at_start():
            return rules.padded_head_dim(head_dim)

    def max_table_blocks(self, n_blocks: int, *, grouped: bool) -> int | None:
        return n_blocks if self._bounds_tables and not grouped else None

    def kv_cache(self, blocks: int, block_size: int, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
        padded = self.padded_head_dim(head_dim)
        with _refused_at_start():
            rules.check_cache(block_size, kv_heads, padded)
        return super().kv_cache(blocks, block_size, kv_heads, padded)

    def write_kv(self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
        dim = key_cache.shape[-1]
        key, value = _padded(key, dim), _padded(value, dim)
        self._npu.npu_scatter_pa_kv_cache(key, value, key_cache, value_cache, slots, cache_mode="Norm")

    def plan_attention(
        self, q_lens: Sequence[int], kv_lens: Sequence[int], block_tables: Tensor, block_size: int
    ) -> PagedAttention:
        alone = max(q_lens) == 1  # one new token sees all: without a mask it is faster, and the same
        return _PagedAttention(
            query_ends=list(accumulate(q_lens)),
            key_lengths=list(kv_lens),
            table=block_tables.contiguous(),
            block_size=block_size,
            mask=None if alone else self._causal,
            sparse_mode=0 if alone else 3,  # 3: causal, aligned to the right
            operators=self._npu,
        )

    def graph_attention(
        self, block_tables: Tensor, block_size: int, beside: GraphAttention | None = None
    ) -> GraphAttention:
        shared = beside.workspace if isinstance(beside, _GraphAttention) else None
        return _GraphAttention(table=block_tables, block_size=block_size, operators=self._npu, workspace=shared)

    def segment_attention(
        self, query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], scale: float | None = None
    ) -> Tensor:
        parts, start = [], 0
        for i in range(0, len(lengths), rules.MAX_SEQUENCES):
            ends = list(accumulate(lengths[i : i + rules.MAX_SEQUENCES]))
            rows = slice(start, start + ends[-1])
            parts.append(_attend_packed(self._npu, query[rows], key[rows], value[rows], ends, ends, scale))
            start = rows.stop
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def cross_attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _attend_packed(self._npu, query, key, value, [query.shape[0]], [key.shape[0]])


@contextmanager
def _refused_at_start() -> Iterator[None]:
    """What a checkpoint or a setting asks of an operator in vain is refused as such."""
    try:
        yield
    except rules.RuleError as error:
        raise CheckpointError(f"not served on an NPU: {error}") from None


class _PagedAttention:
    """The PagedAttention of one step. The operator takes query lengths summed up, but key lengths one by one."""

    def __init__(
        self,
        *,
        query_ends: list[int],
        key_lengths: list[int],
        table: Tensor,
        block_size: int,
        mask: Tensor | None,
        sparse_mode: int,
        operators: Any,
    ) -> None:
        rules.check_lengths(query_ends, key_lengths)
        rules.check_paged(query_ends, key_lengths, table, block_size, mask, sparse_mode)
        self._operators = operators
        self._arguments = {
            "actual_seq_lengths": query_ends,
            "actual_seq_lengths_kv": key_lengths,
            "block_table": table,
            "block_size": block_size,
            "atten_mask": mask,
            "sparse_mode": sparse_mode,
        }

    def __call__(self, query: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        _, _, kv_heads, padded = key_cache.shape
        key, value = key_cache.flatten(2), value_cache.flatten(2)  # views: [blocks, block_size, kv_heads * padded]
        scale = query.shape[-1] ** -0.5
        return _attend(self._operators, query, key, value, kv_heads, padded, scale, self._arguments)


class _GraphAttention:
    """The GraphAttention of one number of sequences, which all layers of a graph share, one after the other.

    The captured calls hold their outputs and workspace weakly; here both stay, one of each for all layers.
    """

    operator = "npu_fused_infer_attention_score.out"

    def __init__(self, *, table: Tensor, block_size: int, operators: Any, workspace: Tensor | None) -> None:
        """workspace: of another graph, which this one may write into as well."""
        rows = table.shape[0]
        self._query_ends = list(range(1, rows + 1))
        rules.check_paged(self._query_ends, [1] * rows, table, block_size, None, 0)
        self._table, self._block_size, self._operators = table, block_size, operators
        self._blocks = 0  # of the cache, where tables may name no more
        self._packed = True  # as in _PagedAttention
        self._out: Tensor | None = None
        self._sums: Tensor | None = None  # of the softmax: never written
        self.workspace = workspace  # uint8

    def __call__(self, query: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        blocks, _, kv_heads, padded = key_cache.shape
        _, heads, head_dim = query.shape
        key, value, query = key_cache.flatten(2), value_cache.flatten(2), _padded(query, padded)
        # Heads that share no keys are refused in a graph of packed tokens; as rows of one token they are not.
        self._packed = heads != kv_heads
        self._blocks = 0 if self._packed else blocks
        query = query if self._packed else query[:, None]  # [rows, 1, heads, padded]
        arguments = {
            **self.update([1] * len(query)),
            "block_table": self._table,
            "block_size": self._block_size,
            "sparse_mode": 0,
            "input_layout": "TND" if self._packed else "BSND",
            "num_heads": heads,
            "num_key_value_heads": kv_heads,
            "scale": head_dim**-0.5,
        }
        if self._out is None:
            self._out, self._sums = torch.empty_like(query), query.new_empty(1)
            self._take_workspace(query, key, value, arguments)
        operator = self._operators.npu_fused_infer_attention_score.out
        operator(query, key, value, **arguments, workspace=self.workspace, out=[self._out, self._sums])
        out = self._out.view(len(query), heads, padded)
        return out if padded == head_dim else out[..., :head_dim].contiguous()

    def _take_workspace(self, query: Tensor, key: Tensor, value: Tensor, arguments: Mapping[str, object]) -> None:
        """What all lengths need. torch_npu gives as many elements of the query's dtype as that has bytes."""
        ask = self._operators._npu_fused_infer_attention_score_get_max_workspace
        nbytes = ask(query, key, value, **arguments).numel()
        if self.workspace is None or self.workspace.numel() < nbytes:
            self.workspace = torch.empty(nbytes, dtype=torch.uint8, device=query.device)

    def update(self, kv_lens: Sequence[int]) -> dict[str, list[int]]:
        lengths = list(kv_lens)
        rules.check_lengths(self._query_ends, lengths)
        rules.check_paged(self._query_ends, lengths, self._table, self._block_size, None, 0)
        if self._blocks:
            rules.check_table_blocks(sum(-(-n // self._block_size) for n in lengths), self._blocks)
        packed = {"actual_seq_lengths": self._query_ends} if self._packed else {}
        return {**packed, "actual_seq_lengths_kv": lengths}


def _attend_packed(
    operators: Any, query: Tensor, key: Tensor, value: Tensor, query_ends: list[int], key_ends: list[int],
    scale: float | None = None,
) -> Tensor:  # fmt: skip
    """Each segment of rows over its segment of keys, all of them seen. Both lists of lengths are summed up."""
    _, kv_heads, head_dim = key.shape
    padded = rules.padded_head_dim(head_dim)
    key, value = _padded(key, padded), _padded(value, padded)
    arguments = {"actual_seq_lengths": query_ends, "actual_seq_lengths_kv": key_ends, "sparse_mode": 0}
    scale = head_dim**-0.5 if scale is None else scale  # zeros behind a head add nothing to a product
    return _attend(operators, query, key, value, kv_heads, padded, scale, arguments)


def paged_attention(
    query: Tensor, key: Tensor, value: Tensor, kv_heads: int, arguments: Mapping[str, object]
) -> Tensor:
    """The operator as NpuOps launches it, with arguments that no rule is asked about: to measure what they cost."""
    head_dim = query.shape[-1]
    return _attend(torch.ops.npu, query, key, value, kv_heads, head_dim, head_dim**-0.5, arguments)


def to_nz(weight: Tensor) -> Tensor:
    """weight [out, in] in blocks of 16, a layout of NPUs (FRACTAL_NZ). It changes a setting of the process."""
    torch.get_device_module(weight.device).config.allow_internal_format = True  # else the cast does nothing
    blocks: Tensor = torch.ops.npu.npu_format_cast(weight, _FRACTAL_NZ)
    return blocks


def _attend(
    operators: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kv_heads: int,
    padded: int,
    scale: float,
    arguments: Mapping[str, object],
) -> Tensor:
    """query [T, heads, d], its heads not yet padded -> [T, heads, d]"""
    _, heads, head_dim = query.shape
    query = _padded(query, padded)
    mixed: Tensor = operators.npu_fused_infer_attention_score(
        query,
        key,
        value,
        input_layout="TND",
        num_heads=heads,
        num_key_value_heads=kv_heads,
        scale=scale,
        **arguments,
    )[0]
    return mixed if padded == head_dim else mixed[..., :head_dim].contiguous()


def _padded(x: Tensor, dim: int) -> Tensor:
    """x with zeros behind each head, [..., dim]; contiguous, which slices of a fused projection are not."""
    return x.contiguous() if x.shape[-1] == dim else F.pad(x, (0, dim - x.shape[-1]))
