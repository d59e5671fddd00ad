"""One client with fifty videos beside another with a picture a second: both have what is theirs."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Start
from tests.e2e.faults import GREEDY, SMALL
from tests.e2e.running import RunningServer, children_of, data_url
from tests.hostile.conftest import TABLES
from tests.hostile.measure import MORE_SECONDS, quantile
from tests.samples.videos import draw_noisy_number, make_clip

pytestmark = [pytest.mark.long, pytest.mark.process]
VIDEOS = 50
PICTURES = 30  # of the second client when it is alone


def clip() -> str:
    """Ten seconds of 1280 x 720."""
    data = make_clip(250, rate=25, size=(720, 1280), draw=draw_noisy_number)
    return data_url(data).replace("image/png", "video/mp4")


def chat(*inputs: dict[str, Any]) -> bytes:
    """A body, made before its time is taken: fifty large ones keep this process from everything else for seconds."""
    return json.dumps({"inputs": list(inputs), "parameters": {**GREEDY, "max_tokens": 1}}).encode()


def ask(server: RunningServer, key: str, body: bytes) -> float:
    """Seconds of one chat, which is answered."""
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    begun = time.monotonic()
    answer = httpx.post(f"{server.url}/chat", content=body, timeout=900, headers=headers)
    assert answer.status_code == 200, answer.text
    return time.monotonic() - begun


def videos(server: RunningServer, video: bytes) -> float:
    """All of them at once: videos a second."""
    begun = time.monotonic()
    threads = [threading.Thread(target=ask, args=(server, "videos", video)) for _ in range(VIDEOS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return VIDEOS / (time.monotonic() - begun)


PICTURE = chat({"image": SMALL})


class Pictures:
    """One a second, each by a thread of its own, until it is stopped."""

    def __init__(self, server: RunningServer, n: int = 10**6) -> None:
        self.seconds: list[float] = []
        self._server = server
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._run, args=(n,))
        self._thread.start()

    def _run(self, n: int) -> None:
        begun = time.monotonic()
        for i in range(n):
            if self._over.wait(max(0.0, begun + i - time.monotonic())):
                break
            self._threads.append(threading.Thread(target=self._ask))
            self._threads[-1].start()

    def _ask(self) -> None:
        self.seconds.append(ask(self._server, "pictures", PICTURE))

    def end(self, *, now: bool) -> list[float]:
        if now:
            self._over.set()
        self._thread.join()
        for thread in self._threads:
            thread.join()
        return self.seconds


def processor_seconds(server: RunningServer) -> float:
    """Of the server and its children, so far."""
    fields = [
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        for pid in (server.pid, *children_of(server.pid))
    ]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_picture_a_second_beside_fifty_videos(start: Start, tmp_path: Path, workers: str) -> None:
    """Videos alone, then beside pictures, then alone again: the machine has other work, too."""
    keys = tmp_path / "keys"
    keys.write_text("videos\npictures\n")
    video = chat({"video": clip(), "max_pixels": 4 * 28 * 28})  # small frames: it is the workers that decide
    with start("--workers", workers, "--api-key-file", str(keys)) as server:
        ask(server, "pictures", PICTURE)
        ask(server, "videos", video)
        begun = processor_seconds(server)
        alone = Pictures(server, PICTURES).end(now=False)
        share = (processor_seconds(server) - begun) / PICTURES / (os.cpu_count() or 1)  # of the machine, a second
        rates = [videos(server, video)]
        pictures = Pictures(server)
        beside = videos(server, video)
        seconds = pictures.end(now=True)
        rates.append(videos(server, video))
        load = os.getloadavg()[0]
    rate = sum(rates) / 2
    p99, p99_alone = quantile(seconds, 0.99), quantile(alone, 0.99)
    said = (
        f"| {workers} | {len(seconds)} | {quantile(alone, 0.5):.3f} | {p99_alone:.3f} | {quantile(seconds, 0.5):.3f} "
        f"| {p99:.3f} | {rates[0]:.2f}, {rates[1]:.2f} | {beside:.2f} | {100 * share:.1f} | {load:.1f} |"
    )
    TABLES.mkdir(parents=True, exist_ok=True)
    (TABLES / f"fairness-{workers}.md").write_text(f"{said}\n")
    print(f"\n{said}")
    assert p99 <= max(2 * p99_alone, p99_alone + MORE_SECONDS), said
    assert beside >= rate * (0.95 - share), said
