"""What the self-test knows to be right: references compute it again; an error of the specification fails its row."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from configs.settings import EMBEDDED_MODEL
from model.net.mlp import Mlp, take_mlp
from model.net.rope import read_theta
from model.ops.base import Ops
from model.ops.npu import NpuOps
from model.ops.torch_ops import TorchOps
from model.selftest import models
from model.selftest.host import host_at, load_engine
from model.selftest.known import IDS, LOGPROBS, known_cases, stored
from model.selftest.operators import DTYPES, all_cases, specification
from model.selftest.rows import CaseResult
from model.weights import Weights
from tests.model.selftest.reference_outputs import computed, prompt_logprobs
from tests.model.selftest.test_operators import CPU, rows_of
from tests.npu.ring0 import define_operators
from tests.tables import each_of

pytestmark = pytest.mark.network


def test_references_compute_it_again() -> None:
    """From the stored inputs alone, so whatever this release of torch draws."""
    for case in known_cases():
        inputs = case.draw(torch.Generator())
        given = {name: x.numpy().astype(np.float64 if x.is_floating_point() else x.numpy().dtype)
                 for name, x in inputs.items()}  # fmt: skip
        for found, expected in zip(computed(case, given), case.expected, strict=True):
            np.testing.assert_allclose(found, expected.double(), rtol=1e-6, atol=1e-6)


def test_transformers_says_it_again() -> None:
    ids, logprobs = prompt_logprobs()
    assert ids.tolist() == stored()[IDS].tolist()
    np.testing.assert_allclose(logprobs, stored()[LOGPROBS], atol=1e-4)


def test_inputs_are_numbers_of_every_dtype() -> None:
    for case in known_cases():
        for name, x in case.draw(torch.Generator()).items():
            if x.is_floating_point() and name not in ("cos", "sin"):
                assert all(torch.equal(x.to(dtype).float(), x) for dtype in (torch.bfloat16, torch.float16))


def test_every_operation_is_known() -> None:
    assert {case.op for case in known_cases()} == {case.op for case in all_cases()} | {"rope"}


@each_of("dtype", [*DTYPES["cpu"], torch.float16])
def test_the_specification_is_right(dtype: torch.dtype) -> None:
    rows = rows_of(TorchOps(CPU, dtype), specification(), known_cases())
    assert [row for row in rows if row.verdict != "pass"] == [] and len(rows) == 25


def test_all_is_right_over_ring_0() -> None:
    define_operators()
    rows = rows_of(NpuOps(CPU, torch.bfloat16), specification(), known_cases())
    assert [row for row in rows if row.verdict != "pass"] == []


Plant = Callable[[pytest.MonkeyPatch], None]


def op(name: str, wrong: Callable[..., Tensor]) -> Plant:
    return lambda monkeypatch: monkeypatch.setattr(TorchOps, name, lambda self, *given: wrong(*given))


def turned_back(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat([x[..., half:], -x[..., :half]], dim=-1)
    return (x * cos[:, None] + turned * sin[:, None]).to(x.dtype)


def swapped(gate_up: Tensor) -> Tensor:
    up, gate = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def other_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.families.qwen2.recipe.read_theta", lambda *given: 10 * read_theta(*given))


PLANTS: dict[str, tuple[Plant, str]] = {
    "the sign of rotary": (op("rotary", turned_back), "rotary"),
    "gate and up swapped": (op("swiglu", swapped), "swiglu"),
    "gelu by tanh": (op("gelu", lambda x: F.gelu(x, approximate="tanh")), "gelu"),
    "gelu by sigmoid": (op("gelu", lambda x: x * (1.702 * x).sigmoid()), "gelu"),
    "quick gelu, exact": (op("quick_gelu", F.gelu), "quick_gelu"),
    "tanh gelu, exact": (op("gelu_tanh", F.gelu), "gelu_tanh"),
    "rope's base times ten": (other_base, "rope"),
}


@each_of("dtype", DTYPES["cpu"])
@each_of("name", PLANTS)
def test_an_error_of_the_specification_fails_its_row_alone(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, failing = PLANTS[name]
    plant(monkeypatch)
    rows = rows_of(TorchOps(CPU, dtype), specification(), known_cases())
    assert {row.name for row in rows if row.verdict == "fail"} == {failing}


def reference_row(root: Path) -> CaseResult:
    with host_at(EMBEDDED_MODEL, root) as host:
        return models._known("demo model", (load_engine(EMBEDDED_MODEL, root, "cpu", "float32"), host))


def test_the_demo_model_says_what_transformers_says(tmp_path: Path) -> None:
    row = reference_row(tmp_path)
    assert row.verdict == "pass" and row.error is not None and row.error < 1e-4


def test_a_network_with_an_error_fails_the_row_of_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that no operation has: up is loaded in the place of gate."""

    def take(ops: Ops, weights: Weights, gate_up: Sequence[str], *rest: Any, **named: Any) -> Mlp:
        return take_mlp(ops, weights, gate_up[::-1], *rest, **named)

    monkeypatch.setattr("model.net.decoder.take_mlp", take)
    assert reference_row(tmp_path).verdict == "fail"
