"""A bound of the server that lowers the checkpoint's own is said at start.

What it makes smaller the usage of an answer says: test_vllm_fields.py has the server for it.
"""

from pathlib import Path

import pytest

from configs.settings import load_config
from server.defaults import with_own_pixels
from server.report import describe
from server.requests.model_card import read_model_card
from server.thread_limit import Threads
from tests.tiny.qwen2_vl import write_qwen2_vl

OWN = 12_845_056  # of every published checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2_vl(tmp_path_factory.mktemp("published"), max_pixels=OWN)


def table(model: Path, *flags: str) -> dict[str, str]:
    """The rows of the table at start."""
    config = with_own_pixels(load_config(["--model", str(model), *flags], {}))
    lines = describe(
        config, read_model_card(config), Path("/root"), 1 << 30, Threads(n=2, reason="2 cores")
    ).splitlines()
    return {line[2:24].strip(): line[25:] for line in lines if line.startswith("  ")}


def test_the_table_says_the_checkpoints_bound_beside_the_servers(model: Path) -> None:
    lowered = f"; the checkpoint's own bound is {OWN}, which this lowers"
    assert table(model)["--max-pixels"] == f"1003520 pixels of one image or frame after resizing{lowered}"
    for flags in (["--max-pixels", str(OWN)], ["--device", "npu"]):
        assert table(model, *flags)["--max-pixels"].endswith(f"the checkpoint's own bound is {OWN}")
    assert "which this lowers" in table(model, "--max-pixels", "50176")["frame of a video"]
    assert "which this lowers" not in table(model)["frame of a video"]


def test_the_table_says_what_a_video_has_and_what_bounds_it(model: Path) -> None:
    row = table(model)["video budget"]
    assert row.startswith("115200 tokens (90316800 pixels)") and "--max-model-len leaves all videos" in row
    assert "at most 24576 tokens" in row  # three quarters of 32,768
    row = table(model, "--max-video-pixels", "7840000")["video budget"]
    assert row.startswith("10000 tokens (7840000 pixels)") and "--max-video-pixels lowers it from 90316800" in row
    assert "--max-model-len" not in row
