"""Media and texts that are made to cost a worker, at full scale, beside a second client of the same address."""

import base64
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from configs.settings import EMBEDDED_MODEL
from tests.e2e.conftest import Start
from tests.e2e.running import RunningServer, running
from tests.hostile.conftest import Held
from tests.hostile.measure import MORE_SECONDS, Attack
from tests.hostile.posting import posting
from tests.samples.hostile_media import black_clip, flat_png, flat_webp, gif_canvas, padded_jpeg, scanned_page
from tests.samples.pictures import encoded, photo

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
]  # five minutes of film take minutes to writ, pytest.mark.process]

QUESTION = {"text": "what is this?"}
SMALL = {"max_pixels": 28 * 28 * 64}


def url(data: bytes) -> str:
    return "data:;base64," + base64.b64encode(data).decode()


def chat(*inputs: Mapping[str, object]) -> bytes:
    return json.dumps({"inputs": [*inputs, QUESTION], "parameters": {"max_tokens": 1}}).encode()


def of_frames(frame: bytes) -> dict[str, object]:
    return {"video": [url(frame)] * 60}


ATTACKS: Sequence[Attack] = (
    posting("row 2 canvas", "/chat", lambda: chat({"video": url(gif_canvas(8191, 4319, 40)), "num_frames": 40}), 400),
    posting("row 2 jpeg", "/chat", lambda: chat(*[{"image": url(padded_jpeg(65500, 2700))}] * 8), 400),
    posting("row 2 scans", "/chat", lambda: chat({"image": url(padded_jpeg(65500, 2700, 1700, 413_000))}), 400),
    posting("row 2 list", "/chat", lambda: chat(of_frames(padded_jpeg(8192, 4319))), 400),
    posting("row 2 allowance", "/chat", lambda: chat({"image": url(flat_webp(16_000, 3900)), **SMALL}), 200),
    posting("row 7 rgba", "/chat", lambda: chat({"image": url(flat_png(13_300, 13_300, colour=6)), **SMALL}), 200),
    posting("row 7 grey", "/chat", lambda: chat({"image": url(flat_png(13_000, 13_000)), **SMALL}), 200),
    posting("row 11 marks", "/chat", lambda: chat({"text": "a" + "\u0301\u0327" * 200_000}), 400),
)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name.replace(" ", "-"))
def test_others_are_answered(start: Start, held: Held, attack: Attack, workers: int) -> None:
    """Texts are; a picture waits for a job that runs and is honest by its bytes."""
    with start("--workers", str(workers)) as server:
        held(server, replace(attack, late=MORE_SECONDS))


# ---- honest load on the embedded default: answered, or refused with the figure and its limit


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("media")


@pytest.fixture(scope="module")
def demo(media: Path, shm_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = shm_root.with_name(f"{shm_root.name}-honest")
    flags = ["--allow-media-root", str(media), "--max-file-mib", "256"]
    with running(EMBEDDED_MODEL, root, tmp_path_factory.mktemp("demo"), *flags) as server:
        yield server
    assert not root.exists()


def asked(server: RunningServer, what: str, *inputs: Mapping[str, object]) -> tuple[int, str]:
    """Status and text of one chat, whose time is printed."""
    begun = time.monotonic()
    answer = server.http.post("/chat", content=chat(*inputs), headers={"content-type": "application/json"}, timeout=600)
    print(f"\n{what}: {answer.status_code} after {time.monotonic() - begun:.1f} s")
    return answer.status_code, answer.text


def test_32_pictures_of_12_megapixels_by_path(demo: RunningServer, media: Path) -> None:
    picture = photo(4000, 3000)
    for number in range(32):
        (media / f"{number}.jpg").write_bytes(encoded(picture, "JPEG", quality=88 - number))
    inputs = [{"image": str(media / f"{number}.jpg"), **SMALL} for number in range(32)]
    assert asked(demo, "32 photographs of 12 megapixels", *inputs)[0] == 200


def test_five_minutes_of_full_hd(demo: RunningServer, media: Path) -> None:
    write_film(media / "film.mp4", seconds=300)
    print(f"\n{(media / 'film.mp4').stat().st_size >> 20} MiB")
    video = {"video": str(media / "film.mp4"), "num_frames": 60, "total_pixels": 60 * 28 * 28 * 16}
    assert asked(demo, "5 minutes of 1920 x 1080, 60 frames", video)[0] == 200


FLAT: dict[str, Callable[[], dict[str, object]]] = {
    "png of 12 megapixels, one colour": lambda: {"image": url(flat_png(4000, 3000, colour=2))},
    "webp of 12 megapixels, one colour": lambda: {"image": url(flat_webp(4000, 3000))},
    "A4 at 600 dpi, 1 bit": lambda: {"image": url(scanned_page())},
    "a minute of black, 1920 x 1080": lambda: {"video": url(black_clip(60)), "total_pixels": 120 * 28 * 28 * 4},
}


@pytest.mark.parametrize("what", FLAT)
def test_flat_media(demo: RunningServer, what: str) -> None:
    assert asked(demo, what, FLAT[what]())[0] == 200


def test_an_hour_of_podcast(demo: RunningServer, tmp_path: Path) -> None:
    sound = np.random.default_rng(0).integers(-9000, 9000, (1, 44_100), dtype=np.int16)
    path = tmp_path / "podcast.mp3"
    with av.open(str(path), "w", format="mp3") as output:
        stream = output.add_stream("mp3", rate=44_100, layout="mono")
        stream.bit_rate = 32_000
        for second in range(3600):
            frame = av.AudioFrame.from_ndarray(sound, format="s16", layout="mono")
            frame.sample_rate, frame.pts = 44_100, second * 44_100
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    status, text = asked(demo, "an hour of podcast", {"audio": url(path.read_bytes())})
    assert status == 400 and "inputs[0].audio" in text
    assert "hears at most 30 s" in text and ": 3600 s, as its file says" in text


def write_film(path: Path, *, seconds: int) -> None:
    """H.264 of moving noise at some 5 Mbit/s."""
    with av.open(str(path), "w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=30, options={"preset": "ultrafast", "b": "5M", "maxrate": "6M"})
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 1920, 1080, "yuv420p"
        scene = np.asarray(photo(2400, 1080))
        for number in range(seconds * 30):
            left = abs(number * 4 % 960 - 480)
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(scene[:, left : left + 1920]), format="rgb24")
            frame.pts = number
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
