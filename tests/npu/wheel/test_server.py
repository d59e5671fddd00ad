"""The whole server on the stub's NPU: the demo model answers the calls of examples/modalities.sh."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from configs.settings import EMBEDDED_MODEL
from tests.e2e.running import REPO, RunningServer, running, until

pytestmark = pytest.mark.npu

# The profile at start computes the largest items, here through references: they are kept small.
FLAGS = ("--device", "npu", "--max-pixels", "200704", "--max-video-pixels", "401408", "--max-audio-seconds", "30")
ANSWERS = {
    "a picture": "red circle",
    "a clip": "right",
    "a sound": "3",
    "text alone": "I am the demo model of Pixelferry.",
    "all four in one message": "rising",
    "a clip that is also heard": "left",
    "in Chinese": "红色圆形",
}
BOX = 'a box: pixels of the picture in "boxes"'
CIRCLE = [[158, 57], [278, 146]]  # what the model says of it on a CPU; it is at (190, 50), (290, 150)


@pytest.fixture(scope="module")
def demo(shm_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = shm_root.with_name(f"{shm_root.name}-npu")
    flags = (*FLAGS, "--allow-media-root", str(REPO / "examples" / "media"))
    with running(EMBEDDED_MODEL, root, tmp_path_factory.mktemp("demo"), *flags, wait=False) as server:
        server.wait_ready(110)
        yield server
    assert not root.exists()


@pytest.fixture(scope="module")
def answers(demo: RunningServer) -> dict[str, dict[str, Any]]:
    """By title."""
    script = ["bash", str(REPO / "examples" / "modalities.sh")]
    done = subprocess.run(script, env={**os.environ, "BASE_URL": demo.url}, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return {title: json.loads(body) for title, body in zip(lines[::2], lines[1::2], strict=True)}


def test_it_runs_on_the_npu(demo: RunningServer) -> None:
    until("the engine's report", lambda: "engine on npu:0, bfloat16" in demo.out)
    assert "fall back to run on the CPU" not in demo.err


def test_every_modality_is_answered(answers: dict[str, dict[str, Any]]) -> None:
    assert set(answers) == {*ANSWERS, BOX}
    assert {title: answers[title]["text"] for title in ANSWERS} == ANSWERS


def test_a_box_is_about_that_of_a_cpu(answers: dict[str, dict[str, Any]]) -> None:
    (box,) = answers[BOX]["boxes"]
    assert box["ref"] == "green circle"
    assert box["points"] == [[pytest.approx(x, abs=8) for x in corner] for corner in CIRCLE]
