"""One job of a worker: what is refused and when, where the words stand, what is written into the leases."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.checkpoint import Checkpoint
from model.families.qwen2.processor import Qwen2Processor
from shm import SegmentError, decode_shape_from_int64, decode_shm_name_from_int64, read_segment
from tests.samples.pictures import bomb_png, encoded, photo
from tests.tokenization.worker_harness import WorkerHarness, url, worker_harness_at
from tokenization.cancel import Cancelled
from tokenization.chat.dialects import chat_from_openai
from tokenization.chat.errors import ChatError
from tokenization.messages import Encode, Measured, Prepare
from tokenization.placeholders import Layout
from tokenization.prepare import encode, prepare, write_words
from tokenization.processor import Processor
from tokenization.text.detokenize import whole_text

PHOTO, SMALL = url(encoded(photo(120, 90), "JPEG")), url(encoded(photo(60, 60), "PNG"))


@pytest.fixture(scope="module")
def processor(tiny: Checkpoint) -> Processor:
    return Qwen2Processor(tiny, 28 * 28 * 1280)


@pytest.fixture
def harness(tmp_path: Path, processor: Processor) -> Iterator[WorkerHarness]:
    with worker_harness_at(tmp_path / "shm", processor) as harness:
        yield harness


def test_text_alone_asks_for_nothing(harness: WorkerHarness) -> None:
    done = harness.run([{"text": "hello"}])
    assert not harness.asked and done.media == () and (done.input_ids >= 0).all()
    assert done.input_ids.dtype == np.int64 and done.positions.dtype == np.int32
    assert done.positions.tolist() == [list(range(len(done.input_ids)))] * 3 and done.position_delta == 0


def test_a_text_stands_as_it_is(harness: WorkerHarness, processor: Processor) -> None:
    text = "Hi <|im_start|> 你"
    done = encode(Encode(request_id="r", text=text), harness.start(), processor)
    assert whole_text(processor.tokenizer, done.input_ids.tolist()) == text
    assert not set(done.input_ids.tolist()) & set(processor.tokenizer.special.values()), "typed, so it is ordinary text"
    assert done.media == () and done.positions.tolist() == [list(range(len(done.input_ids)))] * 3
    layout = Layout(input_ids=done.input_ids, spans=())
    positions, delta = processor.positions(layout, ())
    assert (positions == done.positions).all() and delta == done.position_delta == 0


def test_a_text_that_cannot_fit_is_refused_unread(harness: WorkerHarness, processor: Processor) -> None:
    with pytest.raises(ChatError, match="characters of text, more than fit") as caught:
        encode(Encode(request_id="r", text="a" * 100_000_000), harness.start(), processor)
    assert caught.value.code == "context_length_exceeded"


def test_a_text_of_too_many_tokens_is_not_encoded_to_its_end(
    harness: WorkerHarness, processor: Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight million characters, of which each is a token, took more memory than a worker has."""
    start, seen = harness.start(), list[int]()
    encoded = type(processor.tokenizer).encode

    def noted(self: Any, text: str) -> list[int]:
        seen.append(len(text))
        return encoded(self, text)

    monkeypatch.setattr(type(processor.tokenizer), "encode", noted)
    words = "q z " * (4 * start.max_model_len)
    asks: tuple[Callable[[], object], ...] = (
        lambda: encode(Encode(request_id="r", text=words), start, processor),
        lambda: harness.run([{"text": words[: len(words) // 2]}, {"text": words[len(words) // 2 :]}]),
    )
    for ask in asks:
        seen.clear()
        with pytest.raises(ChatError, match="more than fit into the model's") as caught:
            ask()
        assert caught.value.code == "context_length_exceeded"
        assert 2 <= len(seen) and max(seen) < len(words)


def test_pixels_lie_where_the_words_lead(harness: WorkerHarness, processor: Processor) -> None:
    done = harness.run([{"text": "a"}, {"image": PHOTO}, {"text": "b"}, {"image": SMALL}, {"image": PHOTO}])
    pad = processor.tokenizer.special["<|image_pad|>"]
    (measured,) = harness.asked
    assert measured.params == ("inputs[1].image", "inputs[3].image", "inputs[4].image")
    assert measured.nbytes == (8 * 6 * 588, 16 * 588, 8 * 6 * 588)
    assert (done.input_ids < 0).sum() == 6
    found = []
    for item in done.media:
        ((start, length),) = item.spans
        words = done.input_ids[start : start + 2].tolist()
        assert (done.input_ids[start + 2 : start + length] == pad).all() and min(words) < 0 > max(words)
        shape = decode_shape_from_int64(words[1])
        assert shape == (item.grid[1] * item.grid[2], 588)
        assert item.seen == (14 * item.grid[2], 14 * item.grid[1])
        found.append(read_segment(harness.root, decode_shm_name_from_int64(words[0]), shape, np.uint8))
    assert found[0].tobytes() == found[2].tobytes() and found[0].std() > 10 < found[1].std()
    assert {modality: set(stages) for modality, stages in done.seconds.items()} == {
        "prompt": {"render", "layout", "lease"},
        "image": {"fetch", "measure", "decode", "resize", "patch", "write"},
    }
    assert all(0 <= seconds < 10 for stages in done.seconds.values() for seconds in stages.values())
    assert done.position_delta < 0


def test_counting_decodes_and_writes_nothing(harness: WorkerHarness, processor: Processor) -> None:
    whole = encoded(photo(120, 90), "JPEG")
    inputs = [{"image": url(whole[: len(whole) // 2])}, {"text": "x"}]  # only the header is sound
    counted = harness.run(inputs, count_only=True)
    assert not harness.asked and (counted.input_ids >= 0).all()
    done = harness.run([{"image": url(whole)}, {"text": "x"}])
    assert np.array_equal(done.positions, counted.positions) and done.position_delta == counted.position_delta
    pads = counted.input_ids == processor.tokenizer.special["<|image_pad|>"]
    assert np.array_equal(done.input_ids[~pads], counted.input_ids[~pads])


def test_too_many_items(harness: WorkerHarness) -> None:
    error = harness.refused([{"image": SMALL}] * 5, harness.start(max_items=3))
    assert error.param == "inputs[3].image" and "5" in error.message and "3" in error.message
    assert harness.run([{"image": SMALL}] * 3, harness.start(max_items=3)).input_ids.min() < 0


def test_media_in_history_count_too(harness: WorkerHarness) -> None:
    body = {"history": [{"inputs": [{"image": SMALL}], "text": "x"}], "inputs": [{"image": SMALL}]}
    error = harness.refused(body, harness.start(max_items=1))
    assert error.param == "inputs[0].image"


def test_the_model_s_length_is_exact(harness: WorkerHarness) -> None:
    n = len(harness.run([{"text": "hello"}, {"image": PHOTO}], count_only=True).input_ids)
    assert len(harness.run([{"text": "hello"}, {"image": PHOTO}], harness.start(n + 1), count_only=True).input_ids) == n
    error = harness.refused([{"text": "hello"}, {"image": PHOTO}], harness.start(n))
    assert (
        f"the prompt has {n} tokens ({n - 12} of text, 12 of media)" in error.message and f"takes {n}" in error.message
    )
    assert error.code == "context_length_exceeded"


def test_a_text_that_can_never_fit_is_refused_before_it_is_encoded(
    harness: WorkerHarness, processor: Processor
) -> None:
    most = 4 * processor.tokenizer.longest_token * 100
    error = harness.refused([{"text": "x" * most}, {"text": "x"}], harness.start(100))
    assert "characters" in error.message and error.code == "context_length_exceeded"
    assert "tokens (" in harness.refused([{"text": "x" * 200}], harness.start(100)).message


def test_a_bomb_is_refused_before_anything_is_reserved(harness: WorkerHarness) -> None:
    error = harness.refused([{"image": SMALL}, {"image": url(bomb_png(30_000, 30_000))}])
    assert error.param == "inputs[1].image"


def test_an_image_of_one_token_has_no_place_for_two_words(
    harness: WorkerHarness, tiny: Checkpoint, tmp_path: Path
) -> None:
    for path in tiny.path.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "preprocessor_config.json").write_text('{"min_pixels": 784, "max_pixels": 1000000}')
    harness.processor = Qwen2Processor(Checkpoint(tmp_path), 10**6)
    error = harness.refused([{"image": url(encoded(photo(28, 28), "PNG"))}])
    assert error.param == "inputs[0].image" and "two tokens" in error.message
    assert harness.run([{"image": url(encoded(photo(56, 28), "PNG"))}]).media[0].spans[0][1] == 2


def test_damage_behind_a_sound_header_is_the_client_s(harness: WorkerHarness) -> None:
    data = encoded(photo(120, 90), "JPEG")
    with pytest.raises(ChatError) as caught:
        harness.run([{"image": SMALL}, {"image": url(data[: len(data) // 2])}])
    assert caught.value.param == "inputs[1].image" and len(harness.asked) == 1


def test_files_under_a_root(harness: WorkerHarness, tmp_path: Path) -> None:
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "a.jpg").write_bytes(encoded(photo(60, 60), "PNG"))  # by content, not by suffix
    start = harness.start(roots=(tmp_path / "media",), max_file_bytes=1 << 20)
    arrays = []
    for image in ("a.jpg", SMALL):
        done = harness.run([{"image": image}], start)
        name, shape = done.input_ids[done.input_ids < 0].tolist()
        where = decode_shm_name_from_int64(name), decode_shape_from_int64(shape)
        arrays.append(read_segment(harness.root, *where, np.uint8))
        harness.end()
    assert np.array_equal(arrays[0], arrays[1])


def test_a_cancelled_job_ends_between_items(harness: WorkerHarness) -> None:
    def check() -> None:
        harness.checks += 1
        if harness.checks == 2:
            raise Cancelled

    harness.check = check  # type: ignore[method-assign]
    with pytest.raises(Cancelled):
        harness.run([{"image": SMALL}] * 3)
    assert harness.checks == 2


def test_a_lease_that_is_gone_fails_the_job(harness: WorkerHarness) -> None:
    def ask(measured: Measured) -> Sequence[str]:
        names = harness.pool.lease(measured.request_id, measured.nbytes)
        harness.pool.retire(measured.request_id)
        return names

    harness.ask = ask  # type: ignore[method-assign]
    with pytest.raises(SegmentError):
        harness.run([{"image": SMALL}])


def test_openai_media_are_named_by_their_part(harness: WorkerHarness) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:,no image"}}
    chat = chat_from_openai([{"role": "system", "content": "s"}, {"role": "user", "content": [part, part]}])
    with pytest.raises(ChatError) as caught:
        prepare(Prepare(request_id="r1", chat=chat), harness.start(), harness.processor, harness.ask, harness.check)
    assert caught.value.param == "messages[1].content[0]"


def test_words_stand_in_the_first_two_pads_of_any_spans() -> None:
    for spans in (((2, 5),), ((2, 1), (4, 3)), ((2, 1), (4, 1), (6, 1))):
        ids = np.full(8, 7, np.int64)
        write_words(ids, spans, "0123456789a", (4, 588))
        second = 3 if spans[0][1] > 1 else 4
        assert [i for i in range(8) if ids[i] < 0] == [2, second]
        assert decode_shm_name_from_int64(int(ids[2])) == "0123456789a"
        assert decode_shape_from_int64(int(ids[second])) == (4, 588)
