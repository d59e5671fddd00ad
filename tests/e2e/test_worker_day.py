"""A day's mix of 5,000 media through one worker: what it has at rest is flat, and it is never replaced. `make long`."""

import statistics
import time
from pathlib import Path

import pytest

from configs.serve import MIB
from configs.worker import WorkerConfig
from tests.e2e.day_of_media import day
from tests.e2e.worker_process import worker_process
from tests.tiny.qwen2_5_omni import write_qwen2_5_omni
from tokenization.messages import Prepared
from tokenization.worker import IDLE_SECONDS

pytestmark = pytest.mark.process

MEDIA = 5000
RESTS = 20  # in a day
FLAT = 16 * MIB  # of the rests, the last five against the second five


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_what_a_worker_has_at_rest_is_flat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Between two jobs it has buffers for the next one, within their bound."""
    model = write_qwen2_5_omni(tmp_path / "tiny-omni")
    between, rests, answers, limits = [], [], [], WorkerConfig()
    chats = list(day(MEDIA))
    with worker_process(model, tmp_path / "shm", limits) as worker:
        first = worker.memory("RssAnon")
        for number, inputs in enumerate(chats):
            answers.append(isinstance(worker.ask(*inputs), Prepared))
            between.append(worker.memory("RssAnon"))
            if (number + 1) * RESTS // len(chats) > number * RESTS // len(chats):
                time.sleep(IDLE_SECONDS + 1)
                rests.append(worker.memory("RssAnon"))
        peak, grown = worker.memory("VmHWM"), worker.grown
    with capsys.disabled():
        print(
            f"\n{len(answers)} chats with {MEDIA} media, {answers.count(False)} refused; MiB at first {first / MIB:.0f}"
            f", at rest {[round(rest / MIB) for rest in rests]}, between {statistics.median(between) / MIB:.0f} in "
            f"the median and at most {max(between) / MIB:.0f}, peak {peak / MIB:.0f}"
        )
    assert grown == [] and len(rests) == RESTS
    assert max(rests[-5:]) <= max(rests[5:10]) + FLAT
    assert max(between) <= first + limits.keep_bytes
    assert answers.count(True) > 0.95 * len(answers)
