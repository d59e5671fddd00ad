"""What is launched, copied and waited for, counted by the stub: no more than before, and nothing forbidden."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.npu.pairs import REPO
from tests.npu.stub.counts import launches
from tests.npu.wheel import launches as measured
from tests.npu.wheel.families import FAMILIES

pytestmark = pytest.mark.npu

# F.gelu is the tanh approximation there; the second is attention outside model/ops/npu.py, the third
# runs on the card's slow processor.
FORBIDDEN = {"aclnnGelu", "aclnnFlashAttentionScore", "aclnnSearchSorted"}
# Of a 910B and a 910_93, by CANN's bitwiseand.cpp and equal.cpp; where both are bool a LogicalAnd is launched.
BITS_ON_AI_CORE = {torch.bool, torch.int16, torch.uint16, torch.int32, torch.int64}
ON_AI_CORE = {
    "aten::bitwise_and": BITS_ON_AI_CORE,
    "aten::__and__": BITS_ON_AI_CORE,
    "aten::eq": {
        torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float32, torch.float16, torch.bfloat16,
    },
}  # fmt: skip
# (copies to the device, copies from it, waits) of one step: nothing blocks, and the one wait is for the tokens. A
# picture adds its pixels in and its embeddings out,
# rows that are held to forms their masks.
COSTS = {
    "prefill": (1, 1, 1),
    "prefill, picture": (2, 2, 1),
    "prefill, picture in windows": (2, 2, 1),
    "prefill of two answers": (1, 1, 1),
    "decode, greedy": (1, 1, 1),
    "decode, top-p": (1, 1, 1),
    "decode, rules": (1, 1, 1),
    "decode, forms": (2, 1, 1),
    "decode, some in a form": (2, 1, 1),
}
COUNTED = "copy_async_host_to_device", "copy_async_device_to_host", "wait_event"


@pytest.fixture(scope="module")
def steps(npu: torch.device, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counter[str]]:
    return measured.count_steps(npu, tmp_path_factory.mktemp("steps"))


@pytest.fixture(scope="module")
def families(of_family: Callable[[str], measured.OfFamily]) -> dict[str, Counter[str]]:
    return {name: of_family(name).counts for name in FAMILIES}


def test_the_golden_list(steps: dict[str, Counter[str]], families: dict[str, Counter[str]]) -> None:
    """`python -m tests.npu.wheel.launches` writes it again; launches.json then shows in review what changed."""
    assert measured.recorded(steps, families) == measured.golden()


def test_nothing_forbidden_is_launched(steps: dict[str, Counter[str]], families: dict[str, Counter[str]]) -> None:
    for name, found in {**steps, **families}.items():
        assert not FORBIDDEN & set(found) and not found["aclop"], name


def test_what_works_on_bits_runs_on_ai_core(npu: torch.device, tmp_path: Path) -> None:
    """Every operand has a dtype that AI core takes; with another one the card's slow processor runs the operator."""
    counts, found = measured.dtypes_of_forms(npu, tmp_path)
    called = Counter(name for name, _ in found)
    assert called["aten::bitwise_and"] + called["aten::__and__"] == counts["aclnnBitwiseAndTensor"]
    assert called["aten::eq"] == counts["aclnnEqScalar"] > 0
    assert ("aten::bitwise_and", frozenset([torch.int32])) in found
    assert {(name, dtype) for name, dtypes in found for dtype in dtypes - ON_AI_CORE[name]} == set()


def test_waits_and_copies_of_a_step(steps: dict[str, Counter[str]]) -> None:
    """Exactly so many, and of no other kind: no blocking copy, no wait for a stream or the device."""
    assert {name: tuple(found[counted] for counted in COUNTED) for name, found in steps.items()} == COSTS
    for found in steps.values():
        assert set(found) - set(launches(found)) <= set(COUNTED)


@pytest.mark.parametrize(("hidden", "most"), [(64, 15), (256, 13), (512, 13)], ids=["D16", "D64", "D128"])
def test_launches_of_a_decoder_layer(hidden: int, most: int, npu: torch.device, tmp_path: Path) -> None:
    """Of four heads; those of 16 are padded."""
    found = measured.count_layer(npu, tmp_path, hidden=hidden)
    assert found["aclnnFusedInferAttentionScoreV3"] == 1
    assert sum(found.values()) <= most, found


def test_every_kernel_is_listed(steps: dict[str, Counter[str]], families: dict[str, Counter[str]]) -> None:
    """docs/npu.md says of each where it runs."""
    _, _, text = (REPO / "docs" / "npu.md").read_text("utf-8").partition("### Where kernels run")
    table = text.partition("\n### ")[0]
    rows = [row.split("|") for row in table.splitlines() if row.count("|") == 4]
    listed = {f"aclnn{name.strip()}" for row in rows for name in row[2].split(", ")}
    launched = {name for found in {**steps, **families}.values() for name in launches(found)}
    assert launched <= listed, launched - listed
