"""Wrong answers that another server gives for whole batches, each as a test that ours passes.

All of them came from positions that were computed for a batch at once, or from media that were sorted by name. Here a
request's ids, media and positions are computed for it alone, so each request of a batch must be answered as alone.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import Tensor

from configs.checkpoint import Checkpoint
from model.engine.messages import SamplingParams
from model.forward_batch import ForwardBatch, KVCache
from model.net.multimodal import MultimodalLM
from shm import decode_shape_from_int64, decode_shm_name_from_int64, read_segment
from tests.model.engine.engine_harness import EngineHarness, Parts, clip, engine_at, engine_harness_at, picture
from tests.parity.harness import load_ours
from tests.samples.videos import make_clip

pytestmark = pytest.mark.network

SAMPLING = SamplingParams(max_tokens=6, temperature=0.0, seed=0, logprobs=True)
CLIP = make_clip(40, rate=10, size=(56, 56), key_every=8)  # four seconds


@pytest.fixture(scope="module")
def model(qwen2: Checkpoint) -> MultimodalLM:
    return load_ours(qwen2.path)


@pytest.fixture
def harness(qwen2: Checkpoint, tmp_path: Path) -> Iterator[EngineHarness]:
    with engine_harness_at(qwen2.path, tmp_path / "root") as found:
        yield found


def answers(model: MultimodalLM, harness: EngineHarness, batch: dict[str, Parts]) -> dict[str, list[tuple[int, float]]]:
    """Tokens with their log-probabilities of requests that are prefilled and decoded in the same steps."""
    engine = engine_at(model, harness.root, tokens=2048)
    for name, parts in batch.items():
        harness.submit(engine, harness.prepare(name, parts, SAMPLING))
    harness.run(engine)
    harness.assert_clean(engine)
    return {name: [(e.token.id, e.token.logprob or 0.0) for e in harness.events.pop(name)] for name in batch}


def assert_answered_as_alone(model: MultimodalLM, harness: EngineHarness, batch: dict[str, Parts]) -> None:
    interleaved_block = answers(model, harness, batch)
    harness.finished.clear()
    for name, parts in batch.items():
        ((_, single_block),) = answers(model, harness, {name: parts}).items()
        for (token, logprob), (same, close) in zip(interleaved_block[name], single_block, strict=True):
            assert token == same and logprob == pytest.approx(close, abs=1e-4), name


def test_twenty_pictures_come_in_the_order_in_which_they_were_sent(harness: EngineHarness) -> None:
    """There the tenth picture took the second's place: they were sorted as text, "1", "10", "2"."""
    shades = [Image.new("RGB", (60, 60), (10 * i, 0, 255 - 10 * i)) for i in range(20)]
    parts: list[str | Image.Image] = []
    for i, shade in enumerate(shades):
        parts += [f"{i + 1}", shade]
    generate = harness.prepare("twenty", parts)
    starts = [item.spans[0][0] for item in generate.prepared.media]
    assert starts == sorted(starts) and len(starts) == 20
    for i, start in enumerate(starts):
        name, shape = generate.prepared.input_ids[start : start + 2].tolist()
        pixels = read_segment(harness.root, decode_shm_name_from_int64(name), decode_shape_from_int64(shape), np.uint8)
        red, green, blue = pixels.reshape(-1, 3, 196).transpose(1, 0, 2).reshape(3, -1)
        assert (red == 10 * i).all() and (green == 0).all() and (blue == 255 - 10 * i).all()
    harness.pool.retire("twenty")
    harness.pool.settle("twenty")


def test_a_text_first_in_the_batch_does_not_shift_the_positions_of_the_rest(
    model: MultimodalLM, harness: EngineHarness
) -> None:
    """There a text-only request did not advance the batch's counter, and all behind it got wrong positions."""
    batch: dict[str, Parts] = {
        "text": ["Hello, world! What is a quick brown fox?"],
        "picture": [picture(150, 90, 1), "what is in this image?"],
        "video": ["the ", clip(CLIP, fps=2, min_pixels=3136), "what is in it?"],
        "text_again": ["one two three"],
        "pictures": ["red", picture(60, 170, 2), "green", picture(90, 60, 3)],
    }
    for name, parts in batch.items():
        generate = harness.prepare(name, parts)
        n = len(generate.prepared.input_ids)
        assert generate.prepared.positions.shape == (3, n) and (generate.prepared.positions[:, 0] == 0).all()
        assert generate.prepared.positions.max() == n - 1 + generate.prepared.position_delta
        harness.pool.retire(name)
        harness.pool.settle(name)
    assert_answered_as_alone(model, harness, batch)


def test_every_video_of_a_batch_keeps_its_own_rate(
    model: MultimodalLM, harness: EngineHarness, qwen2: Checkpoint
) -> None:
    """There all videos of a batch took the first one's seconds per grid."""
    timed = "tokens_per_second" in qwen2.config.child("vision_config")
    videos = {"slow": clip(CLIP, fps=1, min_pixels=3136), "fast": clip(CLIP, fps=4, min_pixels=3136)}
    seconds = {"slow": 2.0, "fast": 0.5}
    for order in (("slow", "fast"), ("fast", "slow")):  # in one request
        generate = harness.prepare("both", ["a", videos[order[0]], "b", videos[order[1]]])
        assert [item.seconds_per_grid for item in generate.prepared.media] == [seconds[name] for name in order]
        for item, name in zip(generate.prepared.media, order, strict=True):
            ((start, length),) = item.spans
            times = sorted(
                set(
                    (
                        generate.prepared.positions[0, start : start + length] - generate.prepared.positions[0, start]
                    ).tolist()
                )
            )
            step = int(2 * seconds[name]) if timed else 1
            assert times == [i * step for i in range(item.grid[0])]
        harness.pool.retire("both")
        harness.pool.settle("both")
    batch: dict[str, Parts] = {name: ["the ", video, "what is in it?"] for name, video in videos.items()}
    assert_answered_as_alone(model, harness, batch)


def test_decoding_goes_on_behind_a_video_that_outlasts_its_size(
    model: MultimodalLM, harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There decoding began one position too early for each video whose time is longer than its height and width."""
    seen: list[np.ndarray] = []
    forward = MultimodalLM.forward

    def watched(self: MultimodalLM, batch: ForwardBatch, kv: KVCache) -> Tensor:
        seen.append(batch.positions.numpy().copy())  # the next step is written over this one's
        return forward(self, batch, kv)

    monkeypatch.setattr(MultimodalLM, "forward", watched)
    video = clip(CLIP, fps=4, min_pixels=3136)
    for name, n in (("one", 1), ("two", 2), ("three", 3)):
        generate = harness.prepare(name, [part for i in range(n) for part in (f"{i} ", video)] + ["what?"], SAMPLING)
        for item in generate.prepared.media:
            t, h, w = item.grid
            assert t > max(h, w) // 2
            ((start, length),) = item.spans
            block = generate.prepared.positions[:, start : start + length]
            assert block.max() == block[0, -1]  # time is the greatest
            assert (generate.prepared.positions[:, start + length] == block.max() + 1).all()
        seen.clear()
        engine = engine_at(model, harness.root, tokens=2048)
        harness.submit(engine, generate)
        harness.run(engine)
        whole = np.concatenate(seen, axis=1)
        n_prompt = len(generate.prepared.input_ids)
        assert np.array_equal(whole[:, :n_prompt], generate.prepared.positions)
        decoded = generate.prepared.positions.max() + 1 + np.arange(SAMPLING.max_tokens - 1)
        assert np.array_equal(whole[:, n_prompt:], np.broadcast_to(decoded, (3, len(decoded))))
