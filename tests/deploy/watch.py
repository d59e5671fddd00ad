"""Load of some minutes under a real Prometheus: no scrape fails or is missing, and every panel of the board has data.

python -m tests.deploy.watch --minutes 60
"""

import argparse
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import httpx

from tests.deploy.prometheus import Prometheus, watching
from tests.deploy.shipped import alerts, panels, queries
from tests.e2e.running import RunningServer, data_url, picture, running
from tests.tiny.qwen2_vl import write_qwen2_vl

BODIES = [
    {"inputs": [{"text": "Hi"}], "parameters": {"max_tokens": 40}},
    {"inputs": [{"image": data_url(picture(280, 210))}, {"text": "What is it?"}], "parameters": {"max_tokens": 12}},
    {"inputs": [{"text": "Hi"}], "parameters": {"max_tokens": 40}, "stream": True},
    {"inputs": [{"image": "data:image/png;base64,AAAA"}], "parameters": {"max_tokens": 4}},  # refused
]


class Load:
    """Clients that send one request after the other; some leave before the end of their answer."""

    def __init__(self, url: str, clients: int = 3) -> None:
        self.statuses: dict[int, int] = {}
        self._url = url
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._send, args=(n,)) for n in range(clients)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _send(self, n: int) -> None:
        with httpx.Client(base_url=self._url, timeout=120) as client:
            while not self._end.wait(0.2):
                n += 1
                with client.stream("POST", "/chat", json=BODIES[n % len(BODIES)]) as answer:
                    if n % 7:
                        answer.read()
                with self._lock:
                    self.statuses[answer.status_code] = self.statuses.get(answer.status_code, 0) + 1


def complaints(prometheus: Prometheus, minutes: float, seconds: int) -> list[str]:
    """What is wrong after a load of so many minutes, scraped every so many seconds."""
    scrapes = prometheus.scrapes(minutes)
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(scrapes)]
    found = [f"a scrape failed at {moment}" for moment, succeeded in scrapes if not succeeded]
    found += [f"{gap:.1f} s between two scrapes" for gap in gaps if gap > 1.5 * seconds]
    if len(scrapes) < minutes * 60 / seconds - 2:  # the first comes a moment after the start
        found.append(f"only {len(scrapes)} scrapes")
    window = f"{max(60, 4 * seconds)}s"
    for panel in panels():
        for text in queries(panel, window):
            if not prometheus.numbers(text):
                found.append(f"no data in {panel['title']!r}: {text}")
    health = prometheus.rules()
    found += [f"alert {name}: {health.get(name)}" for name in alerts() if health.get(name) != "ok"]
    found += [f"alert {name} fires" for name in sorted(prometheus.firing())]
    print(f"{len(scrapes)} scrapes, the longest gap {max(gaps):.2f} s; {len(panels())} panels; {len(health)} rules")
    return found


def watch(server: RunningServer, at: Path, minutes: float, seconds: int) -> list[str]:
    target = server.url.removeprefix("http://")
    with watching(target, at, seconds) as prometheus, Load(server.url) as load:
        time.sleep(minutes * 60)
        found = complaints(prometheus, minutes, seconds)
        print(f"answers by status: {dict(sorted(load.statuses.items()))}")
    return found


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.deploy.watch", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--scrape", type=int, default=15, metavar="SECONDS", help="between two scrapes")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        at = Path(name)
        model = write_qwen2_vl(at / "model", tied=False)
        with running(model, at / "shm", at / "logs", "--canary-seconds", "5") as server:
            found = watch(server, at / "prometheus", given.minutes, given.scrape)
    print("\n".join(found) or "nothing is wrong")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
