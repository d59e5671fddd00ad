"""The audio tower by itself: what it refuses, what it does not look at, and how it is put together."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from model.net import audio_tower
from model.net.audio_tower import AudioTower, AudioTowerSpec
from model.net.vision import BlockSpec
from model.ops.torch_ops import TorchOps
from tests.tables import each_of

pytestmark = pytest.mark.network

MELS, WIDTH, OUT, POSITIONS = 5, 8, 12, 30
SPEC = AudioTowerSpec(
    mels=MELS, block=BlockSpec(width=WIDTH, heads=2, inter=16, eps=1e-5, activation="gelu"), depth=0, out=OUT,
    positions=POSITIONS, chunk=None, context=2,
)  # fmt: skip


def tower(chunk: int | None = None) -> AudioTower:
    """Without blocks: what is left can be computed by hand."""
    ops = TorchOps(torch.device("cpu"), torch.float32)
    table = torch.randn(POSITIONS, WIDTH, generator=torch.Generator().manual_seed(9))
    return AudioTower(
        spec=replace(SPEC, chunk=chunk, context=0 if chunk else 2),
        conv1=ops.linear(flat(kernel(1)), torch.linspace(-1, 1, WIDTH)),
        conv2=ops.linear(flat(kernel(2)), torch.linspace(1, -1, WIDTH)),
        gelu=ops.gelu,
        positions=table,
        blocks=(),
        norm=lambda x: x * 2,
        proj=lambda x: x.repeat(1, 2)[:, :OUT],
    )


def kernel(seed: int) -> Tensor:
    n_in = MELS if seed == 1 else WIDTH
    return torch.randn(WIDTH, n_in, 3, generator=torch.Generator().manual_seed(seed)).div(n_in**0.5)


def flat(weight: Tensor) -> Tensor:
    rows: Tensor = weight.transpose(1, 2).flatten(1).contiguous()
    return rows


def by_convolution(mel: Tensor, states: int) -> Tensor:
    """[frames, mels] -> the first `states` states [states, width], with torch's own convolutions."""
    x = F.gelu(F.conv1d(mel.T[None], kernel(1), torch.linspace(-1, 1, WIDTH), padding=1))
    x = F.gelu(F.conv1d(x, kernel(2), torch.linspace(1, -1, WIDTH), stride=2, padding=1))
    return x[0].T[:states] + tower().positions[:states]


def finished(states: Tensor) -> Tensor:
    n = len(states) // 2
    return (states[: 2 * n].view(n, 2, WIDTH).mean(1) * 2).repeat(1, 2)[:, :OUT]


@each_of("frames", [1, 2, 3, 4, 5, 6, 13, 58, 59, 60])
def test_a_whole_clip(frames: int) -> None:
    mel = torch.randn(frames + 2, MELS)
    behind = torch.cat([mel, torch.randn(60, MELS)])[:60]  # what lies further behind is not seen
    expected = finished(by_convolution(behind, (frames + 1) // 2))
    (found,) = tower()([mel], [(1, 1, frames)])
    assert found.shape == ((frames + 1) // 2 // 2, OUT)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@each_of("frames", [1, 2, 3, 5, 6, 7, 8, 11, 12, 13, 100, 101])
@each_of("rows", [1, 6, 8192])
def test_chunks(frames: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 6 frames, 3 states: each alone, positions beginning at 0 again, pairs over the whole clip."""
    monkeypatch.setattr(audio_tower, "MAX_ROWS", rows)
    mel = torch.randn(frames, MELS)
    states = torch.cat([by_convolution(part, (len(part) + 1) // 2) for part in mel.split(6)])
    (found,) = tower(6)([mel], [(1, 1, frames)])
    torch.testing.assert_close(found, finished(states), rtol=0, atol=1e-5)


@each_of(
    ("shape", "grid", "message"),
    [
        ((10, MELS), (1, 1, 10), r"\[10, 5\] do not fit an audio of \(1, 1, 10\)"),
        ((12, MELS + 1), (1, 1, 10), "do not fit"),
        ((12, MELS), (1, 2, 10), "do not fit"),
        ((12, MELS), (2, 1, 10), "do not fit"),
        ((2, MELS), (1, 1, 0), "do not fit"),
        ((63, MELS), (1, 1, 61), "61 frames, this tower hears 60"),
    ],
)
def test_arrays_that_do_not_fit(shape: tuple[int, int], grid: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tower()([torch.zeros(shape)], [grid])


@each_of("dtype", [torch.uint8, torch.float64, torch.bfloat16])
def test_another_dtype(dtype: torch.dtype) -> None:
    assert tower().dtype == torch.float32
    with pytest.raises(ValueError, match=r"not torch\.float32"):
        tower()([torch.zeros((12, MELS), dtype=dtype)], [(1, 1, 10)])


def test_the_array_of_a_grid() -> None:
    assert tower().input_shape((1, 1, 10)) == (12, MELS)
    assert tower(6).input_shape((1, 1, 10)) == (10, MELS)


@each_of("chunk", [None, 6])
@each_of("rows", [1, 9, 8192])
def test_several_sounds_are_those_of_one_by_one(chunk: int | None, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio_tower, "MAX_ROWS", rows)
    lengths = (5, 13, 1, 24, 60)
    sounds = [torch.randn(frames + (0 if chunk else 2), MELS) for frames in lengths]
    grids = [(1, 1, frames) for frames in lengths]
    heard = tower(chunk) if chunk else tower()
    for found, sound, grid in zip(heard(sounds, grids), sounds, grids, strict=True):
        torch.testing.assert_close(found, heard([sound], [grid])[0], rtol=0, atol=1e-5)
