"""Texts do not wait for media, and media that nobody waits for are not read on."""

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.faults import GREEDY, LARGE, SMALL, later
from tests.e2e.running import RunningServer, data_url, until
from tests.samples.hostile_media import turned_png

pytestmark = pytest.mark.process

TICK = os.sysconf("SC_CLK_TCK")
PICTURES = 40  # of one video


@contextlib.contextmanager
def held(*pids: int) -> Iterator[None]:
    """These processes stand still, whatever they are in."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_texts_are_answered_while_every_worker_is_inside_a_video(server: RunningServer) -> None:
    workers = server.children("worker")
    with ThreadPoolExecutor(4) as pool, held(*workers):
        videos = [later(pool, server, {"video": SMALL}) for _ in range(4)]  # no video, but that is not known yet
        until("two of them wait", lambda: server.metric('num_requests_waiting{place="worker"}') == 2)
        assert server.chat({"text": "Hi"}, **GREEDY).status_code == 200
        assert server.http.post("/tokenize", json=[{"text": "Hi"}]).status_code == 200
        raw = {"model": None, "prompt": "Hi", "max_tokens": 2}
        assert server.http.post("/v1/completions", json=raw).status_code == 200
        assert not any(video.done() for video in videos)
        assert server.metric('num_requests_waiting{place="worker"}') == 2
    assert [video.result().status_code for video in videos] == [400] * 4
    assert server.children("worker") == workers
    server.assert_nothing_held()


def test_pictures_are_answered_while_every_worker_is_inside_a_video(server: RunningServer) -> None:
    """Those that are decoded in a second; others wait for a worker that has more time."""
    long: Any = {"image": data_url(turned_png(8500, 8500)), "max_pixels": 12544}
    with ThreadPoolExecutor(4) as pool, held(*server.children("worker")):
        videos = [later(pool, server, {"video": SMALL}) for _ in range(3)]
        until("one of them waits", lambda: server.metric('num_requests_waiting{place="worker"}') == 1)
        assert server.chat({"image": SMALL}, **GREEDY).status_code == 200
        picture = later(pool, server, long)
        until("it waits, too", lambda: server.metric('num_requests_waiting{place="worker"}') == 2)
        assert server.chat({"image": SMALL}, **GREEDY).status_code == 200
        assert not picture.done() and server.metric('num_requests_waiting{place="picture_worker"}') == 0
    assert picture.result().status_code == 200
    assert [video.result().status_code for video in videos] == [400] * 3
    server.assert_nothing_held()


def seconds_of(pids: list[int]) -> float:
    """Processor time of all their threads together."""
    fields = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(one[11]) + int(one[12]) for one in fields) / TICK


def asked(server: RunningServer, salt: str) -> socket.socket:
    """A connection that asks for a video of many pictures, which no cache has for this salt."""
    video = {"video": [LARGE] * PICTURES, "max_pixels": 12544}
    content = json.dumps({"inputs": [video], "parameters": GREEDY, "cache_salt": salt}).encode()
    address = urlsplit(server.url)
    sock = socket.create_connection((address.hostname or "", address.port or 0), timeout=60)
    head = f"POST /chat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    sock.sendall(head.encode() + b"\r\n\r\n" + content)
    return sock


def test_a_client_that_left_costs_no_more_processor_time(server: RunningServer) -> None:
    """It leaves early in a video of many pictures, most of which are then never opened."""
    workers = server.children("worker")
    begun = seconds_of(workers)
    with contextlib.closing(asked(server, "whole")) as sock:
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
    whole = seconds_of(workers) - begun
    server.assert_nothing_held()
    begun = seconds_of(workers)
    with contextlib.ExitStack() as standing:
        with contextlib.closing(asked(server, "left")):
            until("it is decoded", lambda: seconds_of(workers) - begun > whole / 10, every=0.002)
            standing.enter_context(held(*workers))  # so that no busy machine lets them go on before it is known
            left = seconds_of(workers)
        until("it is known", lambda: server.http.get("/health/ready").json()["requests"] == 0)
    server.assert_nothing_held()
    with ThreadPoolExecutor(4) as pool:  # of each worker: what it had before is over once it answers this
        others: list[Any] = [later(pool, server, {"video": [SMALL] * 4}) for _ in range(4)]
    assert [one.result().status_code for one in others] == [200] * 4
    assert seconds_of(workers) - left < whole / 3
    assert server.children("worker") == workers
