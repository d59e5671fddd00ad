"""Videos are as large as qwen-vl-utils 0.0.14 makes them, within what the model's length leaves: none is a new 400.

video_sizes.json was recorded with torch 2.13, torchvision 0.28 and qwen-vl-utils 0.0.14. Rows of the package are
[height, width, frames, options, size]: its own `fetch_video` over a reader that gives frames of zeros, where
`transforms.functional.resize` is replaced by a function that notes the size. Rows of transformers are
[height, width, new height, new width]: `Qwen2VLVideoProcessor.from_pretrained` of a directory whose
video_preprocessor_config.json says what "said" holds, called with two frames of zeros; 4.57.6 and 5.23.0 gave the same
(4.57.6 changes its class's own `size` when a file says min_pixels: it is set back before each directory).
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from configs.checkpoint import Checkpoint
from configs.serve import MediaConfig
from model.grids.bounds import frame_rules
from model.registry import family_of
from tests.samples.pictures import encoded, photo
from tests.tables import entries
from tests.tiny.qwen2_vl import write_json, write_qwen2_vl
from tests.tokenization.worker_harness import WorkerHarness, url, worker_harness_at
from tokenization.chat.dialects import chat_from_openai
from tokenization.chat.errors import ChatError
from tokenization.chat.options import MediaOptions
from tokenization.media.frame_sampling import TOTAL_PIXELS, UNBOUNDED, FrameSize
from tokenization.messages import Prepare, Room
from tokenization.prepare import prepare

pytestmark = pytest.mark.network

SIZES = json.loads((Path(__file__).parent / "video_sizes.json").read_text())
PUBLISHED_CAPS = MediaConfig(max_pixels=UNBOUNDED)
NO_CAPS = MediaConfig(max_pixels=UNBOUNDED, max_video_pixels=UNBOUNDED)
OLD_TOTAL = int(24576 * 28 * 28 * 0.9)  # what all videos had before


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerHarness]:
    checkpoint = Checkpoint(write_qwen2_vl(tmp_path_factory.mktemp("tiny")))
    processor = family_of(checkpoint).processor(checkpoint, 28 * 28 * 1280)
    with worker_harness_at(tmp_path_factory.mktemp("root") / "shm", processor) as harness:
        yield harness


def test_the_budget_is_the_packages() -> None:
    assert TOTAL_PIXELS == 90_316_800 == 128_000 * 28 * 28 * 9 // 10


def test_sizes_that_were_too_small() -> None:
    """60 s of 720p, 120 s and 300 s of 1080p at 2 frames a second."""
    rows = SIZES["qwen-vl-utils 0.0.14"][:3]
    assert [size for *_, size in rows] == [[560, 1008], [560, 1008], [392, 728]]
    for height, width, n, _, size in rows:
        frame = FrameSize(height=height, width=width, n=n, options=MediaOptions(), limits=PUBLISHED_CAPS)
        assert list(frame.find()) == size, (height, width, n)


def test_sizes_equal_the_packages() -> None:
    rows = SIZES["qwen-vl-utils 0.0.14"]
    assert len(rows) > 300 and sum("total_pixels" in row[3] for row in rows) > 80
    for height, width, n, said, size in rows:
        frame = FrameSize(height=height, width=width, n=n, options=MediaOptions.read(said), limits=NO_CAPS)
        assert list(frame.find()) == size, (height, width, n, said)


def test_a_checkpoints_own_bounds_are_read_as_transformers_reads_them(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {})
    with entries() as entry:
        for case in SIZES["Qwen2VLVideoProcessor"]:
            write_json(tmp_path / "video_preprocessor_config.json", case["said"])
            with entry(case["said"]):
                rules = frame_rules(Checkpoint(tmp_path))
                for height, width, *size in case["rows"]:
                    frame = FrameSize(
                        height=height, width=width, n=2, options=MediaOptions(), limits=NO_CAPS, rules=rules
                    )
                    assert list(frame.find()) == size, (height, width)


def test_the_servers_bounds_hold_over_a_checkpoints() -> None:
    rules = msgspec.structs.replace(FrameSize.__struct_defaults__[0], max_pixels=12_845_056)
    caps = MediaConfig(max_pixels=1_003_520, max_video_pixels=20_000_000)
    for n in (2, 60, 600):
        frame = FrameSize(height=2160, width=3840, n=n, options=MediaOptions(), limits=caps, rules=rules)
        height, width = frame.find()
        assert height * width <= 1_003_520 and n // 2 * height * width <= 20_000_000
        assert frame.wanted()[0] > height


# ---- what the model's length leaves


FRAME = encoded(Image.new("RGB", (640, 360)), "JPEG")  # a small file: a video has up to 768 of it
PICTURE = url(encoded(photo(300, 200), "PNG"))


def clip(n: int, **beside: Any) -> dict[str, Any]:
    """A video of `n` frames of 640 x 360."""
    frame = base64.b64encode(FRAME).decode()
    return {"video": "data:video/jpeg;base64," + ",".join([frame] * n), **beside}


def old_tokens(part: dict[str, Any], n: int) -> int:
    said = {"total_pixels": OLD_TOTAL, **part}
    frame = FrameSize(height=360, width=640, n=n, options=MediaOptions.read(said), limits=PUBLISHED_CAPS)
    height, width = frame.find()
    return n // 2 * height * width // 784


VIDEO = st.builds(
    lambda grids, beside: (2 * grids, beside),
    st.sampled_from([1, 2, 5, 30, 60, 120, 384]),
    st.sampled_from(
        [{}, {}, {"max_pixels": 50176}, {"min_pixels": 200_704}, {"min_pixels": 1, "max_pixels": 784},
         {"total_pixels": 784 * 300}, {"max_pixels": 28 * 28 * 4, "min_pixels": 1}]
    ),
)  # fmt: skip


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    videos=st.lists(VIDEO, min_size=1, max_size=3),
    pictures=st.integers(0, 3),
    words=st.integers(0, 200),
    length=st.sampled_from([120, 400, 1000, 4096, 32768]),
    tight=st.booleans(),
)
def test_what_was_answered_is_answered(
    harness: WorkerHarness, videos: list[Any], pictures: int, words: int, length: int, tight: bool
) -> None:
    videos = [(n, beside if n > 2 else {}) for n, beside in videos]
    clips = [clip(n, **beside) for n, beside in videos]
    inputs = [{"text": "a" * words}, *clips, *[{"image": PICTURE}] * pictures]
    whole = harness.run(inputs, harness.start(1 << 20), count_only=True)
    seen = [sum(n for _, n in item.spans) for item in whole.media if item.kind == "video"]
    others = len(whole.input_ids) - sum(seen)
    old = others + sum(old_tokens(part, n) for part, (n, _) in zip(clips, videos, strict=True))
    limit = old + 1 if tight and old < length else length  # the least with which it was answered
    if old >= limit:
        return
    now = harness.run(inputs, harness.start(limit), count_only=True)
    assert len(now.input_ids) < limit
    free = [i for i, (_, beside) in enumerate(videos) if "total_pixels" not in beside]
    tokens = [sum(n for _, n in item.spans) for item in now.media if item.kind == "video"]
    left = limit - (len(now.input_ids) - sum(tokens[i] for i in free))
    fewest = sum(max(videos[i][0] // 2, min(seen[i], 4) if videos[i][0] == 2 else 0) for i in free)
    assert sum(tokens[i] for i in free) <= max(left * 3 // 4, fewest)
    for i, item in enumerate(item for item in now.media if item.kind == "video"):
        assert tokens[i] <= seen[i] and (item.reduced is not None) == (tokens[i] < seen[i])
        assert i in free or tokens[i] == seen[i]


def video_tokens(harness: WorkerHarness, inputs: list[Any], length: int) -> list[int]:
    done = harness.run(inputs, harness.start(length), count_only=True)
    return [sum(n for _, n in item.spans) for item in done.media if item.kind == "video"]


def test_small_videos_keep_what_they_want_and_the_others_share(harness: WorkerHarness) -> None:
    small, large, larger = clip(2, max_pixels=784 * 20), clip(60), clip(120)
    wanted = video_tokens(harness, [small, large, larger], 1 << 20)
    kept, first, second = video_tokens(harness, [small, large, larger], 4096)
    assert kept == wanted[0] and first < wanted[1] and second < wanted[2]
    share = (4096 * 3 // 4 - kept - 60) // 2
    assert 0.7 * share < first <= share + 60 and 0.7 * share < second <= share + 60  # whole tokens to each frame


def test_the_longest_video_fits_a_short_model(harness: WorkerHarness) -> None:
    """768 frames, of which each alone has at least 128 tokens: the budget wins over a frame's minimum."""
    (tokens,) = video_tokens(harness, [clip(768)], 2048)
    assert 384 <= tokens <= 2048 * 3 // 4
    done = harness.run([clip(768)], harness.start(2048), count_only=True)
    assert done.media[0].reduced is not None and done.media[0].reduced.limit == "max_model_len"
    assert done.media[0].reduced.wanted == (644, 364) and done.media[0].param == "inputs[0].video"
    error = harness.refused([clip(768)], harness.start(384))
    assert error.code == "context_length_exceeded"


def test_total_pixels_is_taken_at_its_word(harness: WorkerHarness) -> None:
    asked = clip(60, total_pixels=784 * 6000)
    assert video_tokens(harness, [asked], 6000) == [30 * 180]  # as the package: 18 x 10 tokens a frame
    error = harness.refused([asked], harness.start(5400))
    assert error.code == "context_length_exceeded"
    for value, words in ((0, "greater than 0"), ("x", "whole number"), (True, "whole number"), (1.5, "whole number")):
        with pytest.raises(ChatError, match=words) as caught:
            harness.run([clip(2, total_pixels=value)])
        assert caught.value.param == "inputs[0].total_pixels"


def test_both_routes_take_total_pixels() -> None:
    part = {"type": "video_url", "video_url": {"url": "data:,", "total_pixels": 10_000}}
    chat = chat_from_openai([{"role": "user", "content": [part]}])
    assert chat.media[0].options == MediaOptions(total_pixels=10_000)
    with pytest.raises(ChatError, match="total_pixels"):
        chat_from_openai(
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a", "total_pixels": 1}}]}]
        )


@pytest.mark.parametrize(
    ("room", "limit"),
    [
        (Room(tokens=1000, media_tokens=1 << 20, media_bytes=1 << 40), "max_model_len"),
        (Room(tokens=32768, media_tokens=700, media_bytes=1 << 40), "embedding_mib"),
        (Room(tokens=32768, media_tokens=1 << 20, media_bytes=4 << 20), "shm_mib"),
    ],
)
def test_nor_does_it_outgrow_the_cache_the_embeddings_or_the_shared_memory(
    harness: WorkerHarness, room: Room, limit: str
) -> None:
    """What only the rest of the server knows comes with each chat."""
    chat = chat_from_openai(
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}},
                                      {"type": "video_url", "video_url": {"url": clip(60)["video"]}}]}]
    )  # fmt: skip
    job = Prepare(request_id="r1", chat=chat, count_only=True, room=room)
    done = prepare(job, harness.start(32768), harness.processor, harness.ask, harness.check)
    picture, video = done.media
    assert picture.reduced is None and video.reduced is not None and video.reduced.limit == limit
    tokens = sum(n for item in done.media for _, n in item.spans)
    assert len(done.input_ids) < room.tokens and tokens <= room.media_tokens and tokens * 4704 <= room.media_bytes
    assert sum(n for _, n in video.spans) > 400  # and it takes what there is
