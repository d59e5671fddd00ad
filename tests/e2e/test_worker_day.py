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
EVERY = 50  # chats between two looks
FLAT = 16 * MIB  # what the last fifth of a day may have above the second one


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_what_a_worker_keeps_is_flat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_qwen2_5_omni(tmp_path / "tiny-omni")
    kept, answers, limits = [], [], WorkerConfig()
    with worker_process(model, tmp_path / "shm", limits) as worker:
        first = worker.memory("RssAnon")
        for number, inputs in enumerate(day(MEDIA)):
            answers.append(isinstance(worker.ask(*inputs), Prepared))
            if number % EVERY == 0:
                kept.append(worker.memory("RssAnon"))
        peak, bound = worker.memory("VmHWM"), worker.memory("VmData")
        grown = worker.grown
    fifth = len(kept) // 5
    early, late = statistics.median(kept[fifth : 2 * fifth]), statistics.median(kept[-fifth:])
    with capsys.disabled():
        print(
            f"\n{len(answers)} chats with {MEDIA} media, {answers.count(False)} refused; MiB at first {first / MIB:.0f}"
            f", by fifths {[round(statistics.median(kept[i * fifth : (i + 1) * fifth]) / MIB) for i in range(5)]}"
            f", most at rest {max(kept) / MIB:.0f}, peak {peak / MIB:.0f}, of the bound {bound / MIB:.0f}"
        )
    assert grown == [] and late <= early + FLAT
    assert max(kept) <= first + limits.keep_bytes + FLAT, "a look may come before it has settled"
    assert answers.count(True) > 0.95 * len(answers)
