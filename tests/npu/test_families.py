"""Every family over NpuOps: how far its logits are from float32, and its tokens the same where that is clear."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model.ops.npu import NpuOps
from tests.model.ops.present import present_ops
from tests.npu.aten import COMPUTED_OTHERWISE, recorded
from tests.npu.families import FAMILIES, mixed_logits, samples_of, write_family
from tests.parity.harness import Sample, load_ours, load_over

BARS = {"npu-bfloat16": 0.06}  # of the largest logit
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


@pytest.fixture(scope="module")
def setups(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Setup]:
    @cache
    def made(name: str) -> Setup:
        path = write_family(name, tmp_path_factory.mktemp(name))
        samples = samples_of(name, path)
        return Setup(path, samples, mixed_logits(load_ours(path), samples))

    return made


@pytest.mark.parametrize("ops", BARS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_tokens(setups: Callable[[str], Setup], family: str, ops: str) -> None:
    setup = setups(family)
    with recorded() as names:
        found = mixed_logits(load_over(present_ops(ops), setup.path), setup.samples)
    assert not COMPUTED_OTHERWISE.keys() & set(names)
    largest = float(setup.exact.abs().max())
    worst = float((found - setup.exact).abs().max()) / largest
    best = setup.exact.topk(2).values
    clear = (best[:, 0] - best[:, 1]) > 2 * BARS[ops] * largest
    assert worst <= BARS[ops]
    tokens = setup.exact.argmax(-1)
    assert float(clear.float().mean()) >= CLEAR and len(tokens[clear].unique()) > 2
    assert torch.equal(found.argmax(-1)[clear], tokens[clear])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_network_with_attention_asks_whether_its_heads_are_served(
    setups: Callable[[str], Setup], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(NpuOps, "check_heads", lambda self, *heads: asked.append(heads))
    load_over(present_ops("npu-bfloat16"), setups(family).path)
    assert len(asked) == NETWORKS[family]
