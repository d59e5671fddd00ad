"""The process that faces the network opens no media: what could be attacked by a file is not even mapped in it."""

import re
from pathlib import Path

import pytest

from tests.e2e.running import RunningServer, data_url, picture

pytestmark = pytest.mark.process

DECODERS = re.compile(r"libtorch|/markupsafe/|/av(\.libs)?/|/soxr/|libavcodec|/PIL/|pillow\.libs|libjpeg|libwebp")


def test_only_workers_map_decoders_and_only_the_engine_torch(server: RunningServer) -> None:
    answer = server.chat({"image": data_url(picture(64, 64))}, {"text": "What is it?"}, max_tokens=2)
    assert answer.status_code == 200, answer.text
    maps = Path(f"/proc/{server.pid}/maps").read_text()
    assert not DECODERS.search(maps), DECODERS.findall(maps)
    assert all("PIL" in Path(f"/proc/{pid}/maps").read_text() for pid in server.children("worker")[:1])
    assert all("libtorch" in Path(f"/proc/{pid}/maps").read_text() for pid in server.children("engine"))
    assert not any("libtorch" in Path(f"/proc/{pid}/maps").read_text() for pid in server.children("worker"))
