"""A day's mix of 5,000 media through one worker: what it keeps is flat, and it is never replaced. `make long`."""

import statistics
from pathlib import Path

import pytest

from configs.serve import MIB, WorkerConfig
from tests.e2e.day_of_media import day
from tests.e2e.worker_process import worker_process
from tests.tiny.qwen2_5_omni import write_qwen2_5_omni
from tokenization.messages import Prepared

MEDIA = 5000
FLAT = 16 * MIB  # what is left after pages went back, in the last fifth of a day and in the second one


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_what_a_worker_keeps_is_flat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Between jobs it has buffers for the next one, within their bound; the least of a fifth is what is no buffer."""
    model = write_qwen2_5_omni(tmp_path / "tiny-omni")
    kept, answers, limits = [], [], WorkerConfig()
    with worker_process(model, tmp_path / "shm", limits) as worker:
        first = worker.memory("RssAnon")
        for inputs in day(MEDIA):
            answers.append(isinstance(worker.ask(*inputs), Prepared))
            kept.append(worker.memory("RssAnon"))
        peak, grown = worker.memory("VmHWM"), worker.grown
    fifth = len(kept) // 5
    parts = [kept[i * fifth : (i + 1) * fifth] for i in range(5)]
    with capsys.disabled():
        print(
            f"\n{len(answers)} chats with {MEDIA} media, {answers.count(False)} refused; MiB at first {first / MIB:.0f}"
            f", least by fifths {[round(min(part) / MIB) for part in parts]}"
            f", median {[round(statistics.median(part) / MIB) for part in parts]}, peak {peak / MIB:.0f}"
        )
    assert grown == [] and min(parts[-1]) <= min(parts[1]) + FLAT
    assert max(statistics.median(part) for part in parts) <= first + limits.keep_bytes
    assert answers.count(True) > 0.95 * len(answers)
