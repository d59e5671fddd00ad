"""A worker has a bound of memory: one job's peak, what is kept between jobs, a replacement that loses nothing."""

import base64
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from configs.serve import MIB, MediaConfig
from configs.worker import WorkerConfig
from tests.e2e.conftest import Start
from tests.e2e.faults import GREEDY, SMALL, in_order, later
from tests.e2e.running import RunningServer, data_url, until
from tests.e2e.worker_process import worker_process
from tests.samples.videos import make_clip
from tokenization.messages import Prepared, PrepareFailed
from tokenization.worker_memory import TOO_LARGE

pytestmark = pytest.mark.process

Servers = Iterator[RunningServer]
BOUND = 512  # MiB
# A double of a leak, in workers alone: whenever memory is given back to the system, 32 MiB more are held for good.
LEAK = """
import gc, sys
if "worker" in sys.orig_argv:
    collect, held = gc.collect, []
    def leaking(generation=2):
        held.append(bytearray(b"x" * (32 << 20)))
        return collect(generation)
    gc.collect = leaking
"""


def flat(width: int, height: int, mode: str = "RGB") -> str:
    """A PNG of one colour as clients send it."""
    file = io.BytesIO()
    Image.new(mode, (width, height)).save(file, "PNG", compress_level=1)
    return data_url(file.getvalue())


def draw_dust(number: int, width: int, height: int) -> np.ndarray:
    """uint8 [height, width, 3] that no codec makes small."""
    return np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)


def test_a_large_picture_is_forgotten(tiny_model: Path, tmp_path: Path) -> None:
    """42 megapixels: the most that a worker has is stated, and what it keeps is what it had before."""
    with worker_process(tiny_model, tmp_path / "shm", WorkerConfig(memory_bytes=BOUND * MIB)) as worker:
        assert isinstance(worker.ask({"image": SMALL}), Prepared)
        first = worker.memory("RssAnon")
        worker.forget_peak()
        assert isinstance(worker.ask({"image": flat(7000, 6000)}), Prepared)
        until("it has settled", lambda: worker.memory("RssAnon") < first + 48 * MIB, said=lambda: f"{first}")
        assert 160 * MIB < worker.memory("VmHWM") - worker.memory("RssFile") < 320 * MIB
        assert worker.memory("VmData") < BOUND * MIB and worker.grown == []


def test_a_worker_that_rests_gives_back_the_buffers_of_ordinary_pictures(tiny_model: Path, tmp_path: Path) -> None:
    """They are far below what it may keep between jobs."""
    with worker_process(tiny_model, tmp_path / "shm", WorkerConfig()) as worker:
        assert isinstance(worker.ask({"image": SMALL}), Prepared)
        until("it rests", lambda: worker.memory("RssAnon") < 64 * MIB)
        first = worker.memory("RssAnon")
        assert isinstance(worker.ask(*[{"image": flat(4000, 3000)}] * 2), Prepared)
        kept = worker.memory("RssAnon")
        assert kept > first + 24 * MIB
        until("it rests", lambda: worker.memory("RssAnon") < first + 12 * MIB, said=lambda: f"{first} {kept}")
        assert worker.grown == []


@pytest.mark.faults
def test_a_job_that_meets_the_bound_costs_no_other(tiny_model: Path, tmp_path: Path) -> None:
    """It is refused by the field that is too large, and the same process answers the next one."""
    with worker_process(tiny_model, tmp_path / "shm", WorkerConfig(memory_bytes=BOUND * MIB)) as worker:
        for mode in ("RGB", "RGBA"):
            refused = worker.ask({"image": SMALL}, {"image": flat(13000, 12000, mode)})
            assert isinstance(refused, PrepareFailed)
            assert (refused.kind, refused.code, refused.param) == ("bad_request", TOO_LARGE, "inputs[1].image")
            assert "512 MiB" in refused.message
            assert isinstance(worker.ask({"image": SMALL}), Prepared)
        assert worker.memory("VmHWM") - worker.memory("RssFile") < BOUND * MIB


def test_films_leave_nothing_in_arenas_of_threads(tiny_model: Path, tmp_path: Path) -> None:
    """Their decoders' threads come and go with each film. A chat of a few is prepared, and the worker may stay."""
    clip = base64.b64encode(make_clip(8, size=(1080, 1920), options={"preset": "ultrafast"})).decode()
    with worker_process(tiny_model, tmp_path / "shm", WorkerConfig(keep_bytes=64 * MIB)) as worker:
        for _ in range(2):
            assert isinstance(worker.ask(*[{"video": f"data:video/mp4;base64,{clip}", "num_frames": 2}] * 8), Prepared)
        assert worker.grown == []


@pytest.mark.faults
def test_a_job_that_met_the_bound_costs_no_honest_film(tiny_model: Path, tmp_path: Path) -> None:
    """What it freed stays mapped, and leaves no room for a decoder's threads. The server hears of it first."""
    best = {"qmin": "1", "qmax": "1"}
    clip = make_clip(
        12, codec="mjpeg", container="mov", pixels="yuvj444p", size=(720, 1280), options=best, draw=draw_dust
    )
    path = tmp_path / "large.mov"
    path.write_bytes(clip)
    small = tmp_path / "small.mp4"
    small.write_bytes(make_clip(12))
    media = MediaConfig(roots=(tmp_path,))
    with worker_process(tiny_model, tmp_path / "shm", WorkerConfig(memory_bytes=BOUND * MIB), media) as worker:
        refused = worker.ask(*[{"video": str(path), "num_frames": 2}] * 8)
        assert isinstance(refused, PrepareFailed) and refused.code == TOO_LARGE, refused
        honest = worker.ask({"video": str(small), "num_frames": 2})
        assert worker.grown or isinstance(honest, Prepared), "it refuses others' films, and says nothing"


@pytest.fixture(scope="module")
def leaking_server(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Servers:
    path = tmp_path_factory.mktemp("leak")
    (path / "sitecustomize.py").write_text(LEAK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(path))
        with start("--workers", "1", "--worker-memory-mib", str(BOUND), "--worker-keep-mib", "16") as server:
            yield server


@pytest.fixture
def leaking(leaking_server: RunningServer) -> Servers:
    """One worker, which holds more for good with each large picture. Shared."""
    yield from in_order(leaking_server)


@pytest.mark.faults
def test_a_worker_that_grew_is_replaced_and_no_chat_is_lost(leaking: RunningServer) -> None:
    """Chats that come meanwhile wait for the next worker, and a refusal of the bound is the client's own."""
    before = leaking.children("worker")
    picture = flat(4000, 3000)
    with ThreadPoolExecutor(8) as pool:
        chats = [{"image": picture}, {"text": "Hi"}, {"image": SMALL}] * 2
        answers = [later(pool, leaking, chat) for chat in chats]
        too_large = later(pool, leaking, {"image": flat(13000, 12000)})
        assert [answer.result().status_code for answer in answers] == [200] * len(answers)
    error = too_large.result().json()["error"]
    assert (too_large.result().status_code, error["code"], error["param"]) == (400, TOO_LARGE, "inputs[0].image")
    until("it was replaced", lambda: leaking.metric('child_renewals_total{role="worker"}') >= 1)
    assert leaking.ready() == 200, "chats wait, and none is refused"
    until("the next one is up", lambda: leaking.children("worker") not in ([], before))
    assert leaking.children("worker") != before
    assert leaking.chat({"image": SMALL}, **GREEDY).status_code == 200
    assert leaking.metric('child_restarts_total{role="worker"}') == 0
    assert "MiB of earlier jobs" in leaking.err
    assert "ERROR" not in leaking.err
