"""Mistakes in the captured call of a decode's attention and in its update, to be planted into model/ops/npu.py."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from torch import Tensor

from model.ops import npu_rules as rules
from model.ops.npu import NpuOps, _GraphAttention
from model.staging.graphs import DecodeGraphs

Plant = Callable[[pytest.MonkeyPatch], None]


class _Operators:
    """In the place of those that a graph's attention calls: `out` with other arguments."""

    def __init__(self, real: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self.npu_fused_infer_attention_score = self
        self._real, self._change = real, change

    def _npu_fused_infer_attention_score_get_max_workspace(self, *tensors: Tensor, **given: Any) -> Tensor:
        found: Tensor = self._real._npu_fused_infer_attention_score_get_max_workspace(*tensors, **given)
        return found

    def out(self, *tensors: Tensor, **given: Any) -> Any:
        return self._real.npu_fused_infer_attention_score.out(*tensors, **self._change(given))


def captured_with(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Plant:
    """The captured call has other arguments."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real = _GraphAttention.__init__

        def made(self: Any, **given: Any) -> None:
            real(self, **{**given, "operators": _Operators(given["operators"], change)})

        patch.setattr(_GraphAttention, "__init__", made)

    return plant


def updated_with(change: Callable[[list[int]], list[int]]) -> Plant:
    """The captured call is updated with other lengths of keys."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real = _GraphAttention.update

        def update(self: Any, kv_lens: Sequence[int]) -> dict[str, list[int]]:
            found = real(self, kv_lens)
            return {**found, "actual_seq_lengths_kv": change(found["actual_seq_lengths_kv"])}

        patch.setattr(_GraphAttention, "update", update)

    return plant


def packed_whatever_the_heads(patch: pytest.MonkeyPatch) -> None:
    """As before it was known that such a graph is refused."""

    def assigned(self: Any, name: str, value: Any) -> None:
        object.__setattr__(self, name, name == "_packed" or value)

    patch.setattr(rules, "check_graph_layout", lambda *given: None)
    patch.setattr(_GraphAttention, "__setattr__", assigned)


def cache_of_anything(patch: pytest.MonkeyPatch) -> None:
    """Memory as it was found, where nobody writes before it is read."""
    real = NpuOps.kv_cache

    def kv_cache(self: NpuOps, *shape: int) -> Any:
        return tuple(cache.fill_(float("nan")) for cache in real(self, *shape))

    patch.setattr(NpuOps, "kv_cache", kv_cache)


def half_a_workspace(patch: pytest.MonkeyPatch) -> None:
    real = _GraphAttention._take_workspace

    def take(self: Any, *given: Any) -> None:
        real(self, *given)
        self.workspace = self.workspace[: len(self.workspace) // 2].clone()

    patch.setattr(_GraphAttention, "_take_workspace", take)


def workspace_as_it_comes(patch: pytest.MonkeyPatch) -> None:
    """In the query's dtype, and so twice as large."""

    def take(self: Any, query: Tensor, key: Tensor, value: Tensor, arguments: Any) -> None:
        self.workspace = self._operators._npu_fused_infer_attention_score_get_max_workspace(
            query, key, value, **arguments
        )

    patch.setattr(_GraphAttention, "_take_workspace", take)


def update_of_another_graph(patch: pytest.MonkeyPatch) -> None:
    def update(self: DecodeGraphs, kv_lens: Sequence[int]) -> float:
        other = self._captured[self._sizes[-1]]
        other.update([*kv_lens, *[1] * (self._sizes[-1] - len(kv_lens))])
        return 0.0

    patch.setattr(DecodeGraphs, "update", update)


def read_before_the_update(patch: pytest.MonkeyPatch) -> None:
    """Whoever looks at a step's states before their lengths are given waits for ever."""
    replay = DecodeGraphs.replay

    def replayed(self: DecodeGraphs, batch: Any) -> Tensor:
        states = replay(self, batch)
        assert states.sum().item() < 1e9
        return states

    patch.setattr(DecodeGraphs, "replay", replayed)
