"""What is launched, copied and waited for, counted by the stub: no more than before, and nothing forbidden."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.npu.stub.counts import launches
from tests.npu.wheel import launches as measured

pytestmark = pytest.mark.npu

# F.gelu is the tanh approximation there; the other one is attention outside model/ops/npu.py.
FORBIDDEN = {"aclnnGelu", "aclnnFlashAttentionScore"}
# (waits for the stream, blocking copies to the device, blocking copies from it) of one step.
WAITS = {
    "prefill": (6, 5, 1),
    "prefill, picture": (10, 8, 2),
    "prefill of two answers": (10, 9, 1),
    "decode, greedy": (6, 5, 1),
    "decode, top-p": (9, 8, 1),
    "decode, rules": (14, 13, 1),
}
COPIES = "copy_blocking_host_to_device", "copy_blocking_device_to_host"


@pytest.fixture(scope="module")
def steps(npu: torch.device, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counter[str]]:
    return measured.count_steps(npu, tmp_path_factory.mktemp("steps"))


@pytest.fixture(scope="module")
def families(npu: torch.device, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counter[str]]:
    return measured.count_families(npu, tmp_path_factory.mktemp("families"))


def test_the_golden_list(steps: dict[str, Counter[str]], families: dict[str, Counter[str]]) -> None:
    """`python -m tests.npu.wheel.launches` writes it again; launches.json then shows in review what changed."""
    assert measured.recorded(steps, families) == measured.golden()


def test_nothing_forbidden_is_launched(steps: dict[str, Counter[str]], families: dict[str, Counter[str]]) -> None:
    for name, found in {**steps, **families}.items():
        assert not FORBIDDEN & set(found) and not found["aclop"], name


def test_waits_and_copies_of_a_step(steps: dict[str, Counter[str]]) -> None:
    """Exactly so many, and of no other kind."""
    assert {name: (found["wait_stream"], *(found[copy] for copy in COPIES)) for name, found in steps.items()} == WAITS
    for found in steps.values():
        assert set(found) - set(launches(found)) <= {"wait_stream", *COPIES}


@pytest.mark.parametrize(("hidden", "most"), [(64, 15), (256, 13), (512, 13)], ids=["D16", "D64", "D128"])
def test_launches_of_a_decoder_layer(hidden: int, most: int, npu: torch.device, tmp_path: Path) -> None:
    """Of four heads; those of 16 are padded."""
    found = measured.count_layer(npu, tmp_path, hidden=hidden)
    assert found["aclnnFusedInferAttentionScoreV3"] == 1
    assert sum(found.values()) <= most, found
