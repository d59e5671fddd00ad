"""Who waits for weights is told every byte of them, once."""

from pathlib import Path

import pytest
import torch

from configs.checkpoint import Checkpoint
from model.weights import Weights
from tests.tiny.qwen2_vl import write_qwen2_vl

pytestmark = pytest.mark.network


def test_weights_tell_every_byte_once(tmp_path: Path) -> None:
    checkpoint = Checkpoint(write_qwen2_vl(tmp_path / "tiny"))
    seen: list[tuple[int, int]] = []
    weights = Weights(checkpoint, {}, torch.float32, on_read=lambda done, total: seen.append((done, total)))
    for name in list(weights._entries):
        weights.take(name)
    totals = {total for _, total in seen}
    assert len(totals) == 1 and seen[-1][0] == totals.pop()
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
