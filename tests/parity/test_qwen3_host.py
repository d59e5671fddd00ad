"""How Qwen3-VL reads videos and pictures against transformers' own functions: frames, sizes, ids, pixels, bounds."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.checkpoint import Checkpoint, CheckpointError
from configs.serve import MediaConfig
from model.families.qwen3_vl.processor import FRAMES, Qwen3VLProcessor, pixel_bounds
from model.grids.bounds import frame_rules
from tests.layouts.chats import hub_form, random_messages
from tests.layouts.directories import write_published
from tests.parity.harness import load_ours
from tests.parity.qwen3_reference import their_frames, their_ids, their_processor, their_size
from tests.parity.qwen3_videos import STORED, VIDEOS, digest, frames_of
from tests.parity.theirs import transformers
from tests.published.edits import edit_json
from tests.samples.pictures import encoded, photo
from tests.samples.videos import make_clip
from tests.tiny.qwen3_vl import write_qwen3_vl
from tokenization.chat.dialects import chat_from_openai
from tokenization.chat.options import MediaOptions
from tokenization.media.frame_sampling import UNBOUNDED, FrameSize, sample_frames
from tokenization.media.source import Source
from tokenization.media.video_frames import video_patches
from tokenization.media.video_plan import VideoPlan
from tokenization.processor import Measure, StageClock

pytestmark = pytest.mark.network

NO_CAPS = MediaConfig(max_pixels=UNBOUNDED, max_video_pixels=UNBOUNDED, max_frames=768)
HUB = (4096, 25165824)  # what the published files say of videos
OWN = (FRAMES.min_pixels, FRAMES.max_pixels)


class WithOuterMarks(Qwen3VLProcessor):
    """As transformers 5 lays videos out."""

    keeps_outer_marks = True


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen3_vl(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("asked", [{}, {"fps": 4.0}, {"fps": 0.3}, {"num_frames": 7}, {"num_frames": 12}], ids=str)
def test_frames(asked: dict[str, Any]) -> None:
    for n_frames in (2, 3, 5, 12, 25, 40, 99, 1000, 60_000):
        for fps in (10.0, 23.976, 29.97, 60.0):
            if asked.get("num_frames", 0) > n_frames:
                continue
            wanted = their_frames(n_frames, fps, **asked)
            found = sample_frames(n_frames, fps, MediaOptions(**asked), NO_CAPS, rules=FRAMES)
            assert found.n == len(wanted)
            assert list(found.indices) == wanted + wanted[-1:] * (len(wanted) % 2), (n_frames, fps)


@pytest.mark.parametrize("size", [HUB, OWN])
def test_sizes(size: tuple[int, int]) -> None:
    rules = type(FRAMES)(whole=True, min_pixels=size[0], max_pixels=size[1])
    rng, changed = random.Random(3), 0
    for _ in range(4000):
        n, height, width = rng.randrange(2, 90), rng.randrange(8, 2500), rng.randrange(8, 2500)
        if max(height, width) > 100 * min(height, width):
            continue
        frame = FrameSize(
            height=height, width=width, n=n + n % 2, shown=n, options=MediaOptions(), limits=NO_CAPS, rules=rules,
            factor=32,
        )  # fmt: skip
        wanted = their_size(n, height, width, size)
        assert frame.find() == wanted, (n, height, width)
        changed += wanted != (round(height / 32) * 32, round(width / 32) * 32)
    assert 200 < changed


def test_the_servers_bounds_hold(path: Path) -> None:
    for cap in (64 * 64, 96 * 160, 640 * 480):
        limits = MediaConfig(max_pixels=cap, max_video_pixels=20 * cap)
        for n in (2, 5, 60, 768):
            frame = FrameSize(
                height=720, width=1280, n=n + n % 2, shown=n, options=MediaOptions(), limits=limits, rules=FRAMES,
                factor=32,
            )  # fmt: skip
            height, width = frame.find()
            assert height * width <= max(cap, 1024) and (n + 1) // 2 * height * width <= max(20 * cap, 1024 * (n + 1))


def film(indices: list[int], fps: float, h: int = 4, w: int = 6) -> Measure:
    t = len(indices) // 2
    plan = VideoPlan(indices=tuple(indices), seconds_per_grid=1.0, fps=fps, size=(h * 16, w * 16), info=None)
    return Measure(kind="video", grid=(t, h, w), shape=(t * h * w, 1536), n_tokens=t * h * w // 4, video=plan)


def still(h: int = 4, w: int = 6) -> Measure:
    return Measure(kind="image", grid=(1, h, w), shape=(h * w, 768), n_tokens=h * w // 4)


@pytest.mark.parametrize("outer", [False, True])
def test_ids_of_random_chats(path: Path, outer: bool) -> None:
    """Text before a video merges with its first time where the template's marks go; between frames nothing merges."""
    host = (WithOuterMarks if outer else Qwen3VLProcessor)(Checkpoint(path), 1 << 30)
    theirs, rng, films = their_processor(path), random.Random(5), 0
    for _ in range(120):
        messages = random_messages(rng, ["image", "video"])
        chat = chat_from_openai(messages)
        measures = [
            still(2 * rng.randrange(1, 4), 2 * rng.randrange(1, 5)) if medium.kind == "image"
            else film(sorted(rng.sample(range(9999), 2 * rng.randrange(1, 6))), rng.choice([10.0, 23.976, 30.0]))
            for medium in chat.media
        ]  # fmt: skip
        films += sum(measure.video is not None for measure in measures)
        layout = host.expand(host.render(chat), measures)
        assert layout.input_ids.tolist() == their_ids(theirs, hub_form(messages), measures, outer=outer)
        for spans, measure in zip(layout.spans, measures, strict=True):
            assert len(spans) == measure.grid[0] and sum(n for _, n in spans) == measure.n_tokens
    assert films > 50


def test_delimiters_are_counted(path: Path) -> None:
    """What a prompt is longer by than its text and its tokens: no merge with the text before is in this one."""
    for kind in (Qwen3VLProcessor, WithOuterMarks):
        host = kind(Checkpoint(path), 1 << 30)
        source = Source(kind="video", param="", data=make_clip(40, rate=10, size=(64, 96)))
        measure = host.measure(source, MediaConfig())
        chat = chat_from_openai([{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "data:,x"}}]}])
        ids = host.render(chat)
        assert len(host.expand(ids, [measure]).input_ids) == len(ids) + measure.n_added
        cut = measure.cut(measure.shape[0] // 2)
        assert len(host.expand(ids, [cut]).spans[0]) == measure.grid[0] // 2


@pytest.mark.parametrize("size", [(1, 1), (31, 33), (48, 80), (640, 480), (60, 400)])
def test_pixels_of_pictures(path: Path, size: tuple[int, int]) -> None:
    image = photo(*size)
    host, source = (
        Qwen3VLProcessor(Checkpoint(path), 1 << 30),
        Source(kind="image", param="", data=encoded(image, "PNG")),
    )
    measure = host.measure(source, MediaConfig())
    found = host.load(source, measure, MediaConfig(), StageClock())
    theirs = transformers.Qwen2VLImageProcessorPil.from_pretrained(path, do_rescale=False, do_normalize=False)
    out = theirs(images=[image], return_tensors="np")
    assert out["image_grid_thw"][0].tolist() == list(measure.grid)
    assert np.array_equal(out["pixel_values"].reshape(-1, 3, 2, 256)[:, :, 0].reshape(-1, 768), found)


def test_bounds_are_the_files(path: Path) -> None:
    bounds = pixel_bounds(Checkpoint(path))
    assert (bounds.image, bounds.frame, bounds.video, bounds.token) == (16777216, 12582912, 12582912, 1024)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": {"hidden_act": "gelu"}}, "hidden_act = 'gelu' is not supported"),
        ({"text": {"attention_bias": True}}, "attention_bias = True is not supported"),
        ({"text": {"rope_scaling": {"mrope_section": [6, 5, 5], "mrope_interleaved": False}}}, "mrope_interleaved"),
        ({"text": {"rope_scaling": {"mrope_section": [6, 5, 4]}}}, "must add up to 16"),
        ({"text": {"num_hidden_layers": 2}}, "2 additions of deepstack need more than 2 layers"),
        ({"vision": {"hidden_act": "gelu"}}, "hidden_act = 'gelu' is not supported"),
        ({"vision": {"deepstack_visual_indexes": [0, 4]}}, r"deepstack_visual_indexes \[0, 4\] are not blocks of 4"),
        ({"vision": {"deepstack_visual_indexes": [1, 1]}}, r"deepstack_visual_indexes \[1, 1\] are not blocks of 4"),
        ({"vision": {"num_position_embeddings": 37}}, "37 positions are no square"),
        ({"vision": {"out_hidden_size": 32}}, "out_hidden_size = 32 is not supported"),
    ],
    ids=str,
)
def test_what_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    def edit(config: dict[str, Any]) -> None:
        config["text_config"] |= change.get("text", {})
        config["vision_config"] |= change.get("vision", {})

    with pytest.raises(CheckpointError, match=message):
        load_ours(edit_json(write_qwen3_vl(tmp_path), edit))


@pytest.mark.parametrize("release", ["4.57.6", "5.23.0"])
def test_videos_as_whole_processors_made_them(tmp_path: Path, release: str) -> None:
    """Frames, sizes, ids and pixels, stored by tests/parity/qwen3_videos.py from an environment with torchvision."""
    write_published("Qwen3-VL-4B-Instruct", tmp_path / "model")
    checkpoint = Checkpoint(tmp_path / "model")
    host = (WithOuterMarks if release.startswith("5") else Qwen3VLProcessor)(checkpoint, 1 << 30)
    rules = frame_rules(checkpoint, FRAMES)
    for row, (n, fps, (height, width), words) in zip(json.loads(STORED.read_text())[release], VIDEOS, strict=True):
        seen = sample_frames(n, fps, MediaOptions(), NO_CAPS, rules=rules)
        frame = FrameSize(
            height=height, width=width, n=len(seen.indices), shown=seen.n, options=MediaOptions(), limits=NO_CAPS,
            rules=rules, factor=32,
        )  # fmt: skip
        size = frame.find()
        grid = (len(seen.indices) // 2, size[0] // 16, size[1] // 16)
        assert list(grid) == row["grid"]
        plan = VideoPlan(indices=seen.indices, seconds_per_grid=1.0, fps=fps, size=size, info=None)
        tokens = grid[0] * grid[1] * grid[2] // 4
        measure = Measure(kind="video", grid=grid, shape=(4 * tokens, 1536), n_tokens=tokens, video=plan)
        video = {"type": "video_url", "video_url": {"url": "data:,x"}}
        said = [{"type": "text", "text": words}, video, {"type": "text", "text": "and?"}]
        ids = host.render(chat_from_openai([{"role": "user", "content": said if words else said[1:]}]))
        assert host.expand(ids, [measure]).input_ids.tolist() == row["ids"], (release, n)
        if "pixels" in row:
            frames = frames_of(n, (height, width))[list(seen.indices)]
            assert digest(video_patches(frames, patch=16, merge=2)) == row["pixels"]
