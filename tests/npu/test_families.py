"""Every family over NpuOps: how far its logits are from float32, and its tokens the same where that is clear."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model.ops.npu import NpuOps
from tests.model.ops.present import present_ops
from tests.npu.aten import COMPUTED_OTHERWISE, recorded
from tests.npu.families import FAMILIES, mixed_logits, samples_of, write_family
from tests.parity.harness import Sample, load_ours, load_over
from tests.tables import each_of

pytestmark = pytest.mark.network

BAR = 0.06  # of the largest logit
NETWORKS = {
    "qwen_vl": 3,
    "qwen2_vl": 2,
    "qwen2_5_vl": 2,
    "qwen2_audio": 2,
    "qwen2_5_omni": 3,
    "qwen3_vl": 2,
    "llava": 2,
    "fuyu": 1,
    "vip_llava": 2,
    "internvl": 2,
    "mistral3": 2,
}  # with attention
CLEAR = 0.6  # of the steps must have a leader that no error within the bar can change


@dataclass(frozen=True)
class Setup:
    path: Path
    samples: Sequence[Sample]
    exact: Tensor  # float32 [steps, vocab]


def setup_of(name: str, folder: Path) -> Setup:
    path = write_family(name, folder)
    samples = samples_of(name, path)
    return Setup(path, samples, mixed_logits(load_ours(path), samples))


@each_of("family", FAMILIES)
def test_logits_and_tokens(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And each network with attention asks whether its heads are served."""
    setup, asked = setup_of(family, tmp_path), list[tuple[int, ...]]()
    check_heads = NpuOps.check_heads

    def checked(self: NpuOps, *heads: int) -> None:
        asked.append(heads)
        check_heads(self, *heads)

    monkeypatch.setattr(NpuOps, "check_heads", checked)
    model = load_over(present_ops("npu-bfloat16"), setup.path)
    assert len(asked) == NETWORKS[family]
    with recorded() as names:
        found = mixed_logits(model, setup.samples)
    assert not COMPUTED_OTHERWISE.keys() & set(names)
    largest = float(setup.exact.abs().max())
    worst = float((found - setup.exact).abs().max()) / largest
    best = setup.exact.topk(2).values
    clear = (best[:, 0] - best[:, 1]) > 2 * BAR * largest
    assert worst <= BAR
    tokens = setup.exact.argmax(-1)
    assert float(clear.float().mean()) >= CLEAR and len(tokens[clear].unique()) > 2
    assert torch.equal(found.argmax(-1)[clear], tokens[clear])
