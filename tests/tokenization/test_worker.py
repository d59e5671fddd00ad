"""The worker's loop over a real channel: every job has an answer, none ends the loop, the end of the channel does."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.checkpoint import Checkpoint
from configs.serve import MediaConfig
from model.families.qwen2.processor import Qwen2Processor
from shm import (
    Channel,
    ChannelClosed,
    ChannelError,
    Loading,
    Owner,
    Pool,
    Pulse,
    channel_pair,
    decode_shape_from_int64,
    decode_shm_name_from_int64,
    read_segment,
)
from tests.samples.damaged_videos import mjpeg_clip
from tests.tokenization.test_prepare import PHOTO, SMALL
from tests.tokenization.worker_harness import url
from tokenization import worker
from tokenization.chat.dialects import chat_from_native
from tokenization.media.source import Source
from tokenization.messages import (
    Cancel,
    FromWorker,
    Leases,
    Measured,
    Prepare,
    Prepared,
    PrepareFailed,
    StartWorker,
    ToWorker,
    WorkerPulse,
    WorkerReady,
)
from tokenization.processor import Measure


class SlowPrompt(Qwen2Processor):
    """Qwen2-VL that stops before each decoding until it is let go on, and breaks when it is told to."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint, 28 * 28 * 1280)
        self.go_on = threading.Event()
        self.go_on.set()
        self.loading = threading.Event()
        self.broken = False

    def load(self, source: Source, measure: Measure, *rest: Any) -> np.ndarray:
        self.loading.set()
        assert self.go_on.wait(30)
        if self.broken:
            raise RuntimeError("secret /dev/shm/name 0x7f00deadbeef")
        return super().load(source, measure, *rest)


class Server:
    """The other end of a worker that runs in a thread."""

    def __init__(self, root: Path, processor: SlowPrompt) -> None:
        self.processor, self.root = processor, root
        self.owner = Owner.claim(root)
        self.pool = Pool(self.owner, 1 << 26)
        ours, theirs = channel_pair()
        self.channel: Channel[FromWorker | Loading] = Channel(ours, FromWorker | Loading)
        self.raw = ours
        self.ended: list[BaseException] = []
        self.pulses: list[WorkerPulse] = []
        start = StartWorker(checkpoint="", media=MediaConfig(), max_model_len=4096, shm_root=str(root))
        self.thread = threading.Thread(target=self._run, args=(Channel(theirs, ToWorker), start))
        self.thread.start()
        assert self.recv() == WorkerReady()

    def _run(self, channel: Channel[ToWorker], start: StartWorker) -> None:
        try:
            worker.run(channel, start, self.processor, Pulse(channel))
        except (ChannelClosed, ChannelError) as error:
            self.ended.append(error)
        finally:
            channel.close()

    def recv(self) -> FromWorker:
        """The next message that is no pulse."""
        while True:
            message = self.channel.recv(20)
            assert message is not None, "the worker says nothing"
            if isinstance(message, WorkerPulse):
                self.pulses.append(message)
            elif not isinstance(message, Loading):
                return message

    def prepare(self, request_id: str, inputs: Any) -> None:
        self.channel.send(Prepare(request_id=request_id, chat=chat_from_native(inputs)))

    def lease(self, measured: FromWorker) -> tuple[str, ...]:
        assert isinstance(measured, Measured)
        names = self.pool.lease(measured.request_id, measured.nbytes)
        self.channel.send(Leases(request_id=measured.request_id, names=names))
        return names

    def finish(self, request_id: str) -> None:
        self.pool.retire(request_id)
        self.pool.settle(request_id)

    def close(self) -> None:
        self.processor.go_on.set()
        self.channel.close()
        self.thread.join(20)
        assert not self.thread.is_alive() and len(self.ended) == 1
        assert self.pool.stats().leased_bytes == 0
        self.owner.close()


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
    assert server.processor.loading.wait(10)
    server.channel.send(Cancel(request_id="r1"))
    time.sleep(0.2)
    server.processor.go_on.set()
    assert failed(server.recv()) == ("cancelled", None)
    server.finish("r1")


def test_jobs_wait_in_line_and_may_be_cancelled_there(server: Server) -> None:
    server.processor.go_on.clear()
    server.prepare("r1", [{"image": SMALL}])
    server.lease(server.recv())
    assert server.processor.loading.wait(10)
    for request_id in ("r2", "r3"):
        server.prepare(request_id, [{"text": "x"}])
    server.channel.send(Cancel(request_id="r2"))
    time.sleep(0.2)
    server.processor.go_on.set()
    answers = [server.recv() for _ in range(3)]
    assert [answer.request_id for answer in answers if isinstance(answer, Prepared)] == ["r1", "r3"]
    assert failed(answers[1]) == ("cancelled", None)
    server.finish("r1")


def test_late_and_strange_replies_are_forgotten(server: Server) -> None:
    server.channel.send(Cancel(request_id="r1"))
    server.channel.send(Leases(request_id="nobody", names=("00000000000",)))
    time.sleep(0.1)
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
    assert server.processor.loading.wait(10)
    server.finish("r1")
    server.processor.go_on.set()
    answer = server.recv()
    assert failed(answer) == ("internal", None) and isinstance(answer, PrepareFailed)
    assert name not in answer.message + caplog.text
    server.prepare("r2", [{"text": "x"}])
    assert isinstance(server.recv(), Prepared)


def test_a_pulse_beats_while_a_job_is_stuck(server: Server) -> None:
    server.processor.go_on.clear()
    server.prepare("r1", [{"image": SMALL}])
    server.lease(server.recv())
    time.sleep(1.8)
    server.processor.go_on.set()
    assert isinstance(server.recv(), Prepared)
    busy = [pulse.busy_seconds for pulse in server.pulses if pulse.request_id == "r1"]
    assert len(busy) >= 2 and busy == sorted(busy) and 0.4 < busy[-1] - busy[0] < 3
    server.finish("r1")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        pulse = server.channel.recv(5)
        if isinstance(pulse, WorkerPulse) and pulse.request_id is None:
            assert pulse.busy_seconds == 0
            return
    pytest.fail("no pulse of an idle worker")


@pytest.mark.parametrize("moment", ["idle", "waiting", "decoding"])
def test_the_end_of_the_channel_ends_the_loop(server: Server, moment: str) -> None:
    if moment != "idle":
        if moment == "decoding":
            server.processor.go_on.clear()
        server.prepare("r1", [{"image": SMALL}])
        measured = server.recv()
        if moment == "decoding":
            server.lease(measured)
            assert server.processor.loading.wait(10)
    server.channel.close()
    server.processor.go_on.set()
    server.thread.join(10)
    assert not server.thread.is_alive() and isinstance(server.ended[0], ChannelClosed)
    server.finish("r1")


def test_a_frame_that_is_no_message_is_not_taken_for_one(server: Server) -> None:
    server.raw.sendall(b"\x01\x00\x00\x00\xc1")
    server.thread.join(10)
    assert not server.thread.is_alive() and isinstance(server.ended[0], ChannelError)
