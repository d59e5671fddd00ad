"""The worker's loop over a real channel: every job has an answer, none ends the loop, the end of the channel does."""

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from configs.checkpoint import Checkpoint
from shm import (
    ChannelClosed,
    ChannelError,
    decode_shape_from_int64,
    decode_shm_name_from_int64,
    read_segment,
)
from tests.samples.damaged_videos import mjpeg_clip
from tests.tokenization.running_worker import Server, SlowPrompt
from tests.tokenization.test_prepare import PHOTO, SMALL
from tests.tokenization.worker_harness import url
from tokenization import worker
from tokenization.chat.grammar import Grammar
from tokenization.messages import (
    Cancel,
    Compile,
    Compiled,
    FromWorker,
    Leases,
    Measured,
    Prepared,
    PrepareFailed,
    WorkerGrown,
)
from tokenization.worker_memory import WorkerMemory


@pytest.fixture
def server(tiny: Checkpoint, tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "shm", SlowPrompt(tiny))
    yield server
    server.close()


def failed(message: FromWorker) -> tuple[str, str | None]:
    assert isinstance(message, PrepareFailed)
    return message.kind, message.param


def test_two_images_end_to_end(server: Server) -> None:
    server.prepare("r1", [{"image": PHOTO}, {"text": "and"}, {"image": SMALL}])
    names = server.lease(server.recv())
    done = server.recv()
    assert isinstance(done, Prepared) and done.request_id == "r1"
    words = [done.input_ids[item.spans[0][0] : item.spans[0][0] + 2].tolist() for item in done.media]
    assert [decode_shm_name_from_int64(name) for name, _ in words] == list(names)
    for (_, word), name, item in zip(words, names, done.media, strict=True):
        shape = decode_shape_from_int64(word)
        assert read_segment(server.root, name, shape, np.uint8).std() > 5 and shape[0] == item.grid[1] * item.grid[2]
    server.finish("r1")


def test_text_alone_needs_no_leases(server: Server) -> None:
    server.prepare("r1", [{"text": "hi"}])
    assert isinstance(server.recv(), Prepared)


def test_what_the_client_did_wrong_names_the_field(server: Server) -> None:
    server.prepare("r1", [{"text": "x"}, {"image": "data:,no image"}])
    assert failed(server.recv()) == ("bad_request", "inputs[1].image")
    server.prepare("r2", [{"video": SMALL}])
    assert failed(server.recv()) == ("bad_request", "inputs[0].video")
    server.prepare("r3", [{"text": "x" * 100_000}])
    answer = server.recv()
    assert failed(answer) == ("bad_request", None)
    assert isinstance(answer, PrepareFailed) and answer.code == "context_length_exceeded"


@pytest.mark.process
def test_no_process_for_the_compiler_is_a_lack_of_the_machine(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (errno.EAGAIN, errno.ENOMEM):

        def no_process(number: int = number) -> int:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patched:
            patched.setattr(os, "fork", no_process)
            server.channel.send(Compile(request_id="r1", grammar=Grammar(kind="regex", source="a", param="x")))
            assert failed(server.recv()) == ("unavailable", None)
    server.channel.send(Compile(request_id="r2", grammar=Grammar(kind="regex", source="a", param="x")))
    assert isinstance(server.recv(), Compiled)


def test_a_cancel_instead_of_leases(server: Server) -> None:
    server.prepare("r1", [{"image": SMALL}])
    assert isinstance(server.recv(), Measured)
    server.channel.send(Cancel(request_id="r1"))
    assert failed(server.recv()) == ("cancelled", None)
    assert not server.processor.loading.is_set()


def test_a_cancel_while_decoding_ends_the_job_before_the_next_item(server: Server) -> None:
    server.processor.go_on.clear()
    server.prepare("r1", [{"image": SMALL}, {"image": SMALL}])
    server.lease(server.recv())
    assert server.processor.loading.wait(60)
    server.cancel("r1")
    server.processor.go_on.set()
    assert failed(server.recv()) == ("cancelled", None)
    server.finish("r1")


def test_jobs_wait_in_line_and_may_be_cancelled_there(server: Server) -> None:
    server.processor.go_on.clear()
    server.prepare("r1", [{"image": SMALL}])
    server.lease(server.recv())
    assert server.processor.loading.wait(60)
    for request_id in ("r2", "r3"):
        server.prepare(request_id, [{"text": "x"}])
    server.cancel("r2")
    server.processor.go_on.set()
    answers = [server.recv() for _ in range(3)]
    assert [answer.request_id for answer in answers if isinstance(answer, Prepared)] == ["r1", "r3"]
    assert failed(answers[1]) == ("cancelled", None)
    server.finish("r1")


def test_late_and_strange_replies_are_forgotten(server: Server) -> None:
    server.channel.send(Cancel(request_id="r1"))
    server.channel.send(Leases(request_id="nobody", names=("00000000000",)))
    server.prepare("r0", [{"text": "x"}])
    assert isinstance(server.recv(), Prepared)  # by now what came before it has been read
    server.prepare("r1", [{"image": SMALL}])
    server.lease(server.recv())
    assert isinstance(server.recv(), Prepared)
    server.channel.send(Cancel(request_id="r1"))  # too late
    server.finish("r1")
    server.prepare("r1", [{"text": "again"}])
    assert isinstance(server.recv(), Prepared)


def test_a_video_that_is_measured_again_goes_into_the_new_leases(server: Server) -> None:
    video = {"video": url(mjpeg_clip(empty=range(40, 60))), "num_frames": 6, "min_pixels": 3136, "max_pixels": 6272}
    server.prepare("r1", [video])
    measured = server.recv()
    first = server.lease(measured)
    again = server.recv()
    assert isinstance(measured, Measured) and isinstance(again, Measured)
    assert again.nbytes == (measured.nbytes[0] * 2 // 3,)
    server.finish("r1")
    names = server.lease(again)
    done = server.recv()
    assert isinstance(done, Prepared)
    word = int(done.input_ids[done.media[0].spans[0][0]])
    assert decode_shm_name_from_int64(word) == names[0] != first[0]
    server.finish("r1")


def test_trouble_of_ours_tells_nothing_of_the_inside(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.processor.broken = True
    server.prepare("r1", [{"image": SMALL}])
    server.lease(server.recv())
    answer = server.recv()
    assert failed(answer) == ("internal", None) and isinstance(answer, PrepareFailed)
    assert "secret" not in answer.message and "0x" not in answer.message
    assert "r1" in caplog.text and "RuntimeError" in caplog.text  # the log knows
    server.processor.broken = False
    server.prepare("r2", [{"text": "x"}])
    assert isinstance(server.recv(), Prepared)
    server.finish("r1")


def test_leases_that_are_gone_fail_one_job(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.processor.go_on.clear()
    server.prepare("r1", [{"image": SMALL}])
    (name,) = server.lease(server.recv())
    assert server.processor.loading.wait(60)
    server.finish("r1")
    server.processor.go_on.set()
    answer = server.recv()
    assert failed(answer) == ("internal", None) and isinstance(answer, PrepareFailed)
    assert name not in answer.message + caplog.text
    server.prepare("r2", [{"text": "x"}])
    assert isinstance(server.recv(), Prepared)


@pytest.mark.slow
def test_a_pulse_beats_while_a_job_is_stuck(server: Server) -> None:
    """And says since when; what waits for the server is not stuck, and spends no time of its own."""
    begun = time.monotonic()
    server.processor.go_on.clear()
    server.prepare("r1", [{"image": SMALL}])
    measured = server.recv()
    waiting = [server.pulse("r1") for _ in range(3)][1:]  # the first may be older than the wait
    assert waiting[0] == waiting[1] and waiting[0].still_seconds == 0
    leased = time.monotonic()
    server.lease(measured)
    busy = [server.pulse("r1") for _ in range(4)][1:]  # the first may be older than the leases
    for seconds in ([one.busy_seconds for one in busy], [one.still_seconds for one in busy]):
        assert seconds == sorted(seconds) and 0.8 < seconds[-1] - seconds[0] <= time.monotonic() - begun
    assert all(one.still_seconds <= one.busy_seconds for one in busy)
    assert busy[-1].busy_seconds <= waiting[1].busy_seconds + time.monotonic() - leased
    server.processor.go_on.set()
    assert isinstance(server.recv(), Prepared)
    server.finish("r1")
    assert server.pulse(None).busy_seconds == 0


def test_a_worker_without_a_job_gives_back_once_and_says_what_stays(
    tiny: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trimmed: list[bool] = []

    def trim(memory: WorkerMemory, *, idle: bool) -> int:
        trimmed.append(idle)
        return 7 if idle else 0

    monkeypatch.setattr(WorkerMemory, "trim", trim)
    monkeypatch.setattr(worker, "IDLE_SECONDS", 0.1)
    server = Server(tmp_path / "shm", SlowPrompt(tiny))
    assert server.recv() == WorkerGrown(nbytes=7)
    time.sleep(0.5)
    server.prepare("r1", [{"text": "hello"}])
    assert isinstance(server.recv(), Prepared) and server.recv() == WorkerGrown(nbytes=7)
    assert trimmed == [True, False, True]
    server.close()


@pytest.mark.parametrize("moment", ["idle", "waiting", "decoding"])
def test_the_end_of_the_channel_ends_the_loop(server: Server, moment: str) -> None:
    if moment != "idle":
        if moment == "decoding":
            server.processor.go_on.clear()
        server.prepare("r1", [{"image": SMALL}])
        measured = server.recv()
        if moment == "decoding":
            server.lease(measured)
            assert server.processor.loading.wait(60)
    server.channel.close()
    server.processor.go_on.set()
    server.thread.join(60)
    assert not server.thread.is_alive() and isinstance(server.ended[0], ChannelClosed)
    server.finish("r1")


def test_a_frame_that_is_no_message_is_not_taken_for_one(server: Server) -> None:
    server.raw.sendall(b"\x01\x00\x00\x00\xc1")
    server.thread.join(60)
    assert not server.thread.is_alive() and isinstance(server.ended[0], ChannelError)
