"""The matrix of operators: all is right over ring 0, and a specification that is spoiled fails its own rows alone."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from model.ops.base import Ops
from model.ops.npu import NpuOps
from model.ops.torch_ops import TorchOps
from model.selftest.cases import Case
from model.selftest.operators import all_cases, check_operators, specification
from model.selftest.rows import CaseResult, Said
from model.selftest.teller import Teller
from tests.npu.ring0 import define_operators
from tests.tables import each_of

pytestmark = pytest.mark.network

CPU = torch.device("cpu")
OPERATORS = sorted({case.op for case in all_cases()})
NOT_COMPUTED = {  # of Ops: what is no operation on tensors
    "padded_head_dim", "check_heads", "device", "dtype", "graph_attention", "kv_cache", "max_table_blocks", "prepacks",
    "ranks", "rotary_angles",
}  # fmt: skip

USERS = {  # operations that take another's result
    "rms_norm": {"add_rms_norm"}, "layer_norm": {"add_layer_norm"}, "write_kv": {"plan_attention"},
}  # fmt: skip


def rows_of(ops: Ops, reference: Ops, cases: Sequence[Case]) -> list[CaseResult]:
    said: list[Said] = []
    check_operators(Teller("operators", said.append), [ops], reference, cases, repeats=1)
    return [one for one in said if isinstance(one, CaseResult)]


def test_every_operation_has_rows() -> None:
    assert set(OPERATORS) == {name for name in vars(Ops) if not name.startswith("_")} - NOT_COMPUTED


def test_all_is_right_over_ring_0() -> None:
    """Within every rule of the NPU's operators, too."""
    define_operators()
    cases = all_cases()
    rows = rows_of(NpuOps(CPU, torch.bfloat16), specification(), cases)
    assert [row for row in rows if row.verdict != "pass"] == [] and len(rows) == len(cases)


@each_of("op", OPERATORS)
def test_a_spoiled_specification_fails_its_rows(op: str) -> None:
    """By two hundredths of what it gives, and by no number where nothing is computed."""
    cases = [next(case for case in all_cases() if case.op == name) for name in OPERATORS]
    rows = rows_of(TorchOps(CPU, torch.bfloat16), spoiled(op), cases)
    assert {row.name for row in rows if row.verdict == "fail"} == {op} | USERS.get(op, set())
    (row,) = (row for row in rows if row.name == op)
    assert row.error is not None and row.tolerance is not None and row.error > row.tolerance


def test_an_error_is_a_row_and_the_others_follow() -> None:
    class Broken(TorchOps):
        def gelu(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no kernel for it, error code 561002\nand a trace")

    rows = rows_of(Broken(CPU, torch.bfloat16), specification(), [case for case in all_cases() if "gelu" in case.op])
    assert {row.name: row.verdict for row in rows} == {
        "quick_gelu": "pass",
        "gelu_tanh": "pass",
        "gelu": "fail",
    }
    assert {row.note for row in rows if row.name == "gelu"} == {"RuntimeError: no kernel for it, error code 561002"}


def test_values_that_are_not_finite_fail() -> None:
    class Lost(TorchOps):
        def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
            return super().swiglu(gate_up) / 0

    rows = rows_of(
        Lost(CPU, torch.bfloat16), specification(), [case for case in all_cases() if case.op == "swiglu"][:1]
    )
    assert [(row.verdict, row.note) for row in rows] == [("fail", "96 of 96 values are not finite")]


def spoiled(op: str) -> Ops:
    class Spoiled(TorchOps):
        """What the operation gives, or what it writes into, is 2 % too large."""

    real = getattr(TorchOps, op)

    def run(self: TorchOps, *given: Any) -> Any:
        found = real(self, *given)
        if op in ("write_kv", "copy_blocks"):
            caches = given[2:4] if op == "write_kv" else given[:2]
            for cache in caches:
                cache.mul_(1.02)
            return None
        if isinstance(found, torch.Tensor):
            return found * 1.02
        if isinstance(found, tuple):
            return tuple(part * 1.02 for part in found)
        return lambda *later: found(*later) * 1.02

    setattr(Spoiled, op, run)
    return Spoiled(CPU, torch.float32)
