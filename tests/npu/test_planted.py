"""Mistakes that are easily made with these operators, each planted into NpuOps and caught by a test named beside it.

Most of them run to the end on an NPU and give a wrong answer. A mistake stands where a programmer would make it: in
what a plan is made of, in a helper, or in the call of the operator.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from model.ops import npu
from model.ops import npu_rules as rules
from tests.model.ops import test_paged as paged
from tests.model.ops import test_torch_ops as conformance
from tests.model.ops.present import present_ops
from tests.npu import test_calls as calls
from tests.tables import each_of

pytestmark = pytest.mark.network

Plant = Callable[[pytest.MonkeyPatch], None]
WRONG = AssertionError  # numbers or shapes of the conformance test


def _ops() -> npu.NpuOps:
    ops = present_ops("npu-bfloat16")
    assert isinstance(ops, npu.NpuOps)
    return ops


def _every_ops(batch: str) -> None:
    paged.assert_as_defined(_ops(), paged.BATCHES[batch], (6, 2), paged.DIM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    name: str
    plant: Plant
    raises: type[Exception]
    says: str  # what the error or the failed assertion says
    check: Callable[[], None] = partial(_every_ops, "mixed")  # a test's call: passes without the mistake
    caught_by: str = "test_paged.py::test_every_ops[npu-bfloat16]"


def _planned(**changes: Callable[[Any], Any]) -> Plant:
    """Change some of the arguments that a step's causal attention is made of."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real = npu._PagedAttention

        def made(**given: Any) -> Any:
            return real(**{name: changes.get(name, lambda value: value)(value) for name, value in given.items()})

        patch.setattr(npu, "_PagedAttention", made)

    return plant


def _called(name: str, change: Callable[..., Any]) -> Plant:
    """Put `change`(the real operator, its arguments) in the place of an operator."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(torch.ops.npu, name, partial(change, getattr(torch.ops.npu, name)))

    return plant


def _no_scale(real: Any, *tensors: Any, scale: float, **rest: Any) -> Any:
    return real(*tensors, **rest)


def _scale_of_the_padded(real: Any, query: Any, *tensors: Any, scale: float, **rest: Any) -> Any:
    return real(query, *tensors, scale=query.shape[-1] ** -0.5, **rest)


def _swapped(real: Any, query: Any, key: Any, value: Any, **rest: Any) -> Any:
    return real(query, value, key, **rest)


def _rstd_as_residual(real: Any, *tensors: Any, **rest: Any) -> Any:
    normed, rstd, _ = real(*tensors, **rest)
    return normed, _, rstd


def _up_first(real: Any, x: Any) -> Any:
    return real(torch.cat(x.chunk(2, dim=-1)[::-1], dim=-1))


def _attention(patch: pytest.MonkeyPatch, change: Callable[..., Any]) -> None:
    _called("npu_fused_infer_attention_score", change)(patch)


def _unpadded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "padded_head_dim", lambda head_dim: head_dim)


def _uncopied(patch: pytest.MonkeyPatch) -> None:
    real = npu._padded
    patch.setattr(npu, "_padded", lambda x, dim: x if x.shape[-1] == dim else real(x, dim))


def _torch_gelu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(npu.NpuOps, "gelu", lambda self, x: F.gelu(x))


RULE = rules.RuleError

MISTAKES = (
    Mistake(
        name="key lengths cumulative",
        plant=_planned(key_lengths=lambda lengths: list(accumulate(lengths))),
        raises=WRONG, says="not close",
    ),
    Mistake(
        name="query lengths per sequence",
        plant=_planned(query_ends=lambda ends: [b - a for a, b in zip([0, *ends], ends, strict=False)]),
        raises=RULE, says="actual_seq_lengths, cumulative without a leading 0",
    ),
    Mistake(
        name="leading 0",
        plant=_planned(query_ends=lambda ends: [0, *ends]),
        raises=RULE, says="actual_seq_lengths, cumulative without a leading 0",
    ),
    Mistake(
        name="lengths as a tensor",
        plant=_planned(key_lengths=torch.tensor),
        raises=RULE, says="actual_seq_lengths_kv, a list of host ints, Tensor",
    ),
    Mistake(
        name="int64 table",
        plant=_planned(table=lambda table: table.long()),
        raises=RULE, says="block_table, int32, torch.int64",
    ),
    Mistake(
        name="fewer table rows than lengths",
        plant=_planned(table=lambda table: table[:-1]),
        raises=RULE, says="block_table, a row for each of 6 sequences, 5",
    ),
    Mistake(
        name="no scale",
        plant=partial(_attention, change=_no_scale), raises=WRONG, says="not close",
    ),
    Mistake(
        name="scale of the padded head",
        plant=partial(_attention, change=_scale_of_the_padded), raises=WRONG, says="not close",
    ),
    Mistake(
        name="heads of 80 unpadded",
        plant=_unpadded,
        check=lambda: paged.assert_as_defined(_ops(), paged.BATCHES["mixed"], (4, 2), 80),
        caught_by="test_paged.py::test_every_head_dim[npu-bfloat16]",
        raises=RULE, says=r"query, head_dim one of \(64, 128, 192\), 80",
    ),
    Mistake(
        name="strided query",
        plant=_uncopied,
        check=lambda: paged.assert_a_view_is_taken(_ops(), 64),
        caught_by="test_paged.py::test_query_may_be_a_view[npu-bfloat16]",
        raises=RULE, says="query, contiguous, strides",
    ),
    Mistake(
        name="sparse_mode 2",
        plant=_planned(sparse_mode=lambda mode: 2),
        raises=RULE, says="sparse_mode, 3 with a table and a mask, 2",
    ),
    Mistake(
        name="mask as a lower triangle",
        plant=_planned(mask=lambda mask: mask.T.contiguous()),
        raises=WRONG, says="not close",
    ),
    Mistake(
        name="key and value swapped",
        plant=partial(_attention, change=_swapped), raises=WRONG, says="not close",
    ),
    Mistake(
        name="rstd taken for the residual",
        plant=_called("npu_add_rms_norm", _rstd_as_residual),
        check=lambda: conformance.test_add_rms_norm(_ops()),
        caught_by="test_torch_ops.py::test_add_rms_norm[npu-bfloat16]",
        raises=WRONG, says="torch.equal|False",
    ),
    Mistake(
        name="gate and up swapped",
        plant=_called("npu_swiglu", _up_first),
        check=lambda: conformance.test_activations(_ops()),
        caught_by="test_torch_ops.py::test_activations[npu-bfloat16]",
        raises=WRONG, says="not close",
    ),
    Mistake(
        name="F.gelu",
        plant=_torch_gelu,
        check=lambda: calls.check_activations_and_attention(_ops()),
        caught_by="test_calls.py::test_no_operator_that_an_npu_computes_otherwise[npu-bfloat16]",
        raises=WRONG, says="aten::gelu.*tanh",
    ),
)  # fmt: skip


@each_of("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_planted_mistake_is_caught(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake.check()
    mistake.plant(monkeypatch)
    with pytest.raises(mistake.raises, match=mistake.says):
        mistake.check()
