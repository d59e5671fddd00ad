"""Rows 2, 7 and 11 at full scale: media and texts that hold the workers, beside which others' texts are answered."""

import contextlib
import io
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from tests.e2e.conftest import Start
from tests.e2e.faults import GREEDY
from tests.e2e.running import RunningServer, data_url, running
from tests.hostile.clients import connected, posted, say
from tests.hostile.conftest import Held
from tests.hostile.measure import MORE_SECONDS, Attack
from tests.hostile.posting import until_over
from tests.tiny.qwen_vl import write_qwen_vl

pytestmark = [pytest.mark.long, pytest.mark.process]
SERVER_BYTES = 256 << 20
FRAME = b"\x21\xf9\x04\0\x32\0\0\0,\0\0\0\0\1\0\1\0\0\2\2D\1\0"  # one pixel, for half a second


def gif(width: int, height: int, n: int) -> bytes:
    """A canvas of that size, and frames of one pixel."""
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\0\0\0\0\0\xff\xff\xff" + FRAME * n + b";"


def clear_png(side: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGBA", (side, side)).save(file, "PNG", compress_level=9)
    return file.getvalue()


@contextlib.contextmanager
def asked_and_left(server: RunningServer, bodies: list[bytes], stay: float) -> Iterator[None]:
    """Each of these is asked again and again, by a client that leaves after so many seconds."""
    over = threading.Event()

    def go(body: bytes) -> None:
        while not over.is_set():
            with contextlib.closing(connected(server.url)) as sock:
                say(sock, body)
                over.wait(stay)

    with until_over([partial(go, body) for body in bodies], over):
        yield


Go = Callable[[RunningServer, set[int]], contextlib.AbstractContextManager[None]]


def attack_of(name: str, inputs: list[dict[str, object]], stay: float, clients: int = 2) -> Attack:
    body = posted("/chat", {"inputs": inputs, "parameters": GREEDY})

    def go(server: RunningServer, killed: set[int]) -> contextlib.AbstractContextManager[None]:
        return asked_and_left(server, [body] * clients, stay)

    return Attack(name=name, go=go, memory_bytes=SERVER_BYTES, late=MORE_SECONDS)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_row_2_videos_whose_clients_leave(start: Start, held: Held, workers: str) -> None:
    url = data_url(gif(8191, 4319, 40)).replace("image/png", "video/gif")
    inputs: list[dict[str, object]] = [{"video": url, "num_frames": 40}, {"text": "?"}]
    with start("--workers", workers) as server:
        held(server, attack_of(f"row 2 videos, {workers} workers", inputs, stay=1.5))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_row_7_pictures_of_gigabytes(start: Start, held: Held, workers: str) -> None:
    inputs: list[dict[str, object]] = [{"image": data_url(clear_png(13300))}]
    with start("--workers", workers) as server:
        held(server, attack_of(f"row 7 pictures, {workers} workers", inputs, stay=10.0))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_row_11_combining_marks(held: Held, workers: str, shm_root: Path, tmp_path: Path) -> None:
    """120,000 of them, of alternating classes."""
    model = write_qwen_vl(tmp_path / "model", ["a cat"])
    inputs: list[dict[str, object]] = [{"text": "a" + "\u0316\u0301" * 60_000}]
    root = shm_root.with_name(f"{shm_root.name}-marks")
    with running(model, root, tmp_path / "logs", "--workers", workers) as server:
        held(server, attack_of(f"row 11 marks, {workers} workers", inputs, stay=10.0))
