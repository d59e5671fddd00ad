"""A layer's parts are a recipe's to choose: another MLP, an addition before a layer, as transformers' hooks do it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model.net.decoder import DecoderLayer, LayerInputs
from model.net.multimodal import MultimodalLM
from tests.parity.harness import OurRun, hf_logits, load_hf, load_ours, make_sample
from tests.tiny.qwen2_vl import write_qwen2_vl

pytestmark = pytest.mark.network

BAR = 1e-4
WAVE = torch.linspace(-1, 1, 64)  # of the tiny decoder's width


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2_vl(tmp_path_factory.mktemp("tiny"))


def with_layer(model: MultimodalLM, i: int, **parts: Any) -> MultimodalLM:
    layers: list[DecoderLayer] = list(model.decoder.layers)
    layers[i] = replace(layers[i], **parts)
    return replace(model, decoder=replace(model.decoder, layers=tuple(layers)))


def add(x: Tensor, step: LayerInputs) -> Tensor:
    assert len(step.slots) == len(x)
    return x + WAVE


@torch.inference_mode()
@pytest.mark.parametrize("chunks", [None, [1, 7, 12]])
@pytest.mark.parametrize("i", [0, 1])
def test_an_addition_before_a_layer(checkpoint: Path, i: int, chunks: Sequence[int] | None) -> None:
    model, reference, sample = load_ours(checkpoint), load_hf(checkpoint), make_sample(checkpoint, [20])
    assert model.hidden_size == len(WAVE)
    plain = hf_logits(reference, sample, checkpoint)

    def before(layer: object, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return given[0] + WAVE, *given[1:]

    reference.model.language_model.layers[i].register_forward_pre_hook(before)
    wanted = hf_logits(reference, sample, checkpoint)
    assert (wanted - plain).abs().max() > 100 * BAR
    found = OurRun(with_layer(model, i, addition=add)).whole(sample, chunks)
    torch.testing.assert_close(found, wanted, atol=BAR, rtol=0)


@torch.inference_mode()
@pytest.mark.parametrize("i", [0, 1])
def test_another_mlp(checkpoint: Path, i: int) -> None:
    """As experts are: some rows go through one network, the others through another, by what the rows hold."""
    model, reference, sample = load_ours(checkpoint), load_hf(checkpoint), make_sample(checkpoint, [20])
    plain, own = hf_logits(reference, sample, checkpoint), model.decoder.layers[i].mlp

    def routed(x: Tensor) -> Tensor:
        return torch.where(x[..., :1] > 0, 3 * own(x), -own(x))

    def behind(mlp: object, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        return torch.where(given[0][..., :1] > 0, 3 * out, -out)

    reference.model.language_model.layers[i].mlp.register_forward_hook(behind)
    wanted = hf_logits(reference, sample, checkpoint)
    assert (wanted - plain).abs().max() > 100 * BAR
    torch.testing.assert_close(OurRun(with_layer(model, i, mlp=routed)).whole(sample), wanted, atol=BAR, rtol=0)
