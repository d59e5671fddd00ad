"""Who waits for large weights sees how far they are; small ones say nothing."""

import io
import logging
from pathlib import Path

import pytest
import torch

from configs.checkpoint import Checkpoint
from model.load_progress import GIB, LoadProgress
from model.weights import Weights
from tests.tiny.qwen2_vl import write_qwen2_vl


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def told(stream: io.StringIO, seconds: list[float]) -> str:
    """What is written while four GiB come, one at each of these times."""
    times = iter([0.0, *seconds])
    progress = LoadProgress(lambda: None, stream, lambda: next(times))
    for done in range(1, len(seconds) + 1):
        progress(done * GIB, len(seconds) * GIB)
    return stream.getvalue()


def test_a_terminal_has_one_line_that_moves_and_ends() -> None:
    line = "loading weights: {} % of 4.0 GiB"
    assert told(Terminal(), [1.0, 3.0, 3.1, 3.15]) == f"\r{line.format(50)}\r{line.format(100)}\n"


def test_a_log_has_a_line_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pixelferry"):
        assert told(io.StringIO(), [3.0, 5.0, 14.0, 14.1]) == ""
    assert [record.getMessage().split(":")[1].split("%")[0].strip() for record in caplog.records] == ["25", "75", "100"]


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_what_loads_fast_says_nothing(stream: io.StringIO, caplog: pytest.LogCaptureFixture) -> None:
    assert told(stream, [0.1, 0.2, 1.0, 1.9]) == "" and caplog.records == []


def test_weights_tell_every_byte_once(tmp_path: Path) -> None:
    checkpoint = Checkpoint(write_qwen2_vl(tmp_path / "tiny"))
    seen: list[tuple[int, int]] = []
    weights = Weights(checkpoint, {}, torch.float32, on_read=lambda done, total: seen.append((done, total)))
    for name in list(weights._entries):
        weights.take(name)
    totals = {total for _, total in seen}
    assert len(totals) == 1 and seen[-1][0] == totals.pop()
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
