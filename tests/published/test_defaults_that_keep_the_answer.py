"""A bound of the server that lowers the checkpoint's own is said at start and in the usage of what it made smaller."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from configs.checkpoint import Checkpoint
from configs.settings import load_config
from model.registry import family_of
from server.defaults import with_own_pixels
from server.report import describe
from server.requests.model_card import read_model_card
from server.thread_limit import Threads
from tests.e2e.running import RunningServer, data_url, picture, running
from tests.samples.videos import make_clip
from tests.tiny.qwen2_vl import write_qwen2_vl
from tests.tokenization.worker_harness import url

OWN = 12_845_056  # of every published checkpoint
LARGE = data_url(picture(1600, 1200))
SMALL = data_url(picture(300, 200))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2_vl(tmp_path_factory.mktemp("published"), max_pixels=OWN)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Its cache holds 2048 tokens of a model that takes 32,768."""
    root = tmp_path_factory.mktemp("root")
    with running(model, root / "shm", root / "logs", "--max-pixels", "200704", "--kv-cache-mib", "1") as server:
        yield server


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


def expected(model: Path, width: int, height: int) -> tuple[int, int]:
    """(width, height) by the checkpoint alone."""
    checkpoint = Checkpoint(model)
    host: Any = family_of(checkpoint).processor(checkpoint, OWN)
    from tokenization.chat.options import MediaOptions

    size: tuple[int, int] = host.handlers["image"]._resized(height, width, MediaOptions(), OWN)[::-1]
    return size


def test_usage_of_both_routes_says_what_was_made_smaller(server: RunningServer, model: Path) -> None:
    parts = [{"image": SMALL}, {"image": LARGE}, {"text": "x"}]
    answer = server.http.post("/chat", json={"inputs": parts, "parameters": {"max_tokens": 1}}).json()
    (found,) = answer["usage"]["reduced_media"]
    assert found["width"] * found["height"] <= 200_704 < found["wanted_width"] * found["wanted_height"]
    assert (found["wanted_width"], found["wanted_height"]) == expected(model, 1600, 1200)
    assert {key: found[key] for key in ("index", "kind", "limit", "param")} == {
        "index": 1, "kind": "image", "limit": "max_pixels", "param": "inputs[1].image",
    }  # fmt: skip
    content = [{"type": "image_url", "image_url": {"url": LARGE}}, {"type": "text", "text": "x"}]
    messages: Any = [{"role": "user", "content": content}]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
        whole = client.chat.completions.create(model=server_model(server), messages=messages, max_tokens=1)
        chunks = list(
            client.chat.completions.create(
                model=server_model(server), messages=messages, max_tokens=1, stream=True,
                stream_options={"include_usage": True},
            )
        )  # fmt: skip
    for usage in (whole.usage, chunks[-1].usage):
        assert usage is not None and usage.model_extra is not None
        (said,) = usage.model_extra["reduced_media"]
        assert said == {**found, "index": 0, "param": "messages[0].content[0]"}


def server_model(server: RunningServer) -> str:
    name: str = server.http.get("/v1/models").json()["data"][0]["id"]
    return name


def test_nothing_is_said_where_nothing_was_made_smaller(server: RunningServer) -> None:
    asked_for = {"image": LARGE, "max_pixels": 50_176}  # the client's own wish
    answer = server.http.post("/chat", json={"inputs": [{"image": SMALL}, asked_for], "parameters": {"max_tokens": 1}})
    assert "reduced_media" not in answer.json()["usage"]


def test_a_video_that_fits_the_model_and_not_the_cache_is_made_smaller(server: RunningServer) -> None:
    """1 MiB of cache is 2048 tokens; at its own size the video has more."""
    assert server.http.get("/v1/models").json()["data"][0]["max_model_len"] == 2048
    film = {"video": url(make_clip(60, size=(320, 240))), "fps": 20, "min_pixels": 100_352}
    answer = server.http.post("/chat", json={"inputs": [film], "parameters": {"max_tokens": 1}})
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    (found,) = usage["reduced_media"]
    assert (found["kind"], found["limit"]) == ("video", "max_model_len") and usage["prompt_tokens"] < 2048
    counted = server.http.post("/tokenize", json=[film]).json()
    assert counted["count"] == usage["prompt_tokens"]
    assert counted["media"][0]["reduced"] == {k: v for k, v in found.items() if k not in ("index", "param", "kind")}
    whole = server.http.post("/chat", json=[{**film, "total_pixels": 90_316_800}])
    assert whole.status_code == 400 and whole.json()["error"]["code"] == "context_length_exceeded"
    assert json.dumps(whole.json()).count("2048")
