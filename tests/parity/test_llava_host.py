"""Ids, pixels and positions of LLaVA-1.5 against transformers' own processor."""

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from configs.checkpoint import Checkpoint
from configs.serve import MediaConfig
from model.net.vision import CLIP_MEAN, CLIP_STD
from model.registry import family_of
from tests.parity.theirs import transformers
from tests.published.layouts import change
from tests.samples.pictures import encoded, photo, with_alpha
from tests.tables import entries
from tests.tiny.llava import N_PADS, PIXELS, write_llava
from tokenization.chat.dialects import chat_from_openai
from tokenization.chat.rendering import with_rendering
from tokenization.media.source import Source
from tokenization.messages import Encode, StartWorker
from tokenization.prepare import encode
from tokenization.processor import Measure, Processor, StageClock

pytestmark = pytest.mark.network

LIMITS = MediaConfig()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="module")
def theirs(path: Path) -> Any:
    return transformers.AutoProcessor.from_pretrained(path)


def host_of(path: Path) -> Processor:
    checkpoint = Checkpoint(path)
    return family_of(checkpoint).host(checkpoint, LIMITS.max_pixels)


def loaded(host: Processor, data: bytes) -> tuple[Measure, np.ndarray]:
    source = Source(kind="image", param="", data=data)
    measure = host.measure(source, LIMITS)
    return measure, host.load(source, measure, LIMITS, StageClock())


# ---- ids and positions

WORDS = ["", " ", "\n", "what is this?", " blanks ", "a\n\nb", "你好。鳥", "🙂", "USER: x ASSISTANT:", "▁", "1 2 3"]


def random_chat(rng: random.Random, image: Image.Image) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """(as OpenAI's clients send it, as transformers takes it, pictures)."""
    sent: list[dict[str, Any]] = []
    turned: list[dict[str, Any]] = []
    n = 0
    for i in range(rng.choice([1, 1, 3, 5])):
        role = "user" if i % 2 == 0 else "assistant"
        parts = [rng.choice(WORDS) for _ in range(rng.randrange(1, 3))]
        places = [rng.random() < 0.5 for _ in parts] if role == "user" else [False for _ in parts]
        ours: list[dict[str, Any]] = []
        other: list[dict[str, Any]] = []
        for text, shown in zip(parts, places, strict=True):
            if shown:
                ours.append({"type": "image_url", "image_url": {"url": "data:,x"}})
                other.append({"type": "image", "image": image})
                n += 1
            ours.append({"type": "text", "text": text})
            other.append({"type": "text", "text": text})
        sent.append({"role": role, "content": ours})
        turned.append({"role": role, "content": other})
    if rng.random() < 0.3:
        said = [{"type": "text", "text": rng.choice(WORDS)}]
        sent.insert(0, {"role": "system", "content": said})
        turned.insert(0, {"role": "system", "content": said})
    return sent, turned, n


def test_ids_and_positions(path: Path, theirs: Any) -> None:
    host, rng, image = host_of(path), random.Random(0), photo(60, 80)
    measure, _ = loaded(host, encoded(image, "PNG"))
    seen = 0
    for _ in range(150):
        sent, turned, n = random_chat(rng, image)
        expected = theirs.apply_chat_template(turned, add_generation_prompt=True, tokenize=True, return_dict=True)
        layout = host.expand(host.render(chat_from_openai(sent)), [measure] * n)
        assert layout.input_ids.tolist() == list(expected["input_ids"][0])
        positions, delta = host.positions(layout, [measure] * n)
        assert delta == 0 and (positions == np.arange(len(layout.input_ids))).all()
        assert [run for spans in layout.spans for _, run in spans] == [N_PADS] * n
        seen += n
    assert seen > 100


def test_a_text_that_is_no_chat(path: Path, theirs: Any) -> None:
    """As the tokenizer alone reads it; what it puts in front may be left out."""
    host, start = host_of(path), StartWorker(checkpoint="", media=LIMITS, max_model_len=4096, shm_root="")
    for text in WORDS[1:]:
        opened, bare = (
            encode(Encode(request_id="r", text=text, opens=opens), start, host).input_ids.tolist()
            for opens in (True, False)
        )
        assert opened == theirs.tokenizer(text)["input_ids"]
        assert bare == theirs.tokenizer(text, add_special_tokens=False)["input_ids"]


def test_a_begun_answer_is_continued(path: Path, theirs: Any) -> None:
    """Behind its last character, as transformers cuts the prompt."""
    host, rng, image = host_of(path), random.Random(2), photo(60, 80)
    measure, _ = loaded(host, encoded(image, "PNG"))
    for _ in range(30):
        sent, turned, n = random_chat(rng, image)
        said = [{"type": "text", "text": rng.choice(["It is", "It is ", "a\n", " x"])}]
        for messages in (sent, turned):
            messages.append({"role": "assistant", "content": said})
        expected = theirs.apply_chat_template(turned, continue_final_message=True, tokenize=True, return_dict=True)
        chat = with_rendering(chat_from_openai(sent), {"continue_final_message": True})
        assert host.expand(host.render(chat), [measure] * n).input_ids.tolist() == list(expected["input_ids"][0])


def test_a_plain_string_is_seen(path: Path, theirs: Any) -> None:
    """The published template passes over a content that is a string. transformers leaves the text out then."""
    host = host_of(path)
    parts = [{"role": "user", "content": [{"type": "text", "text": "what is this?"}]}]
    plain = [{"role": "user", "content": "what is this?"}]
    expected = theirs.apply_chat_template(parts, add_generation_prompt=True, tokenize=True, return_dict=True)
    assert host.render(chat_from_openai(plain)) == list(expected["input_ids"][0])
    assert "what" not in theirs.apply_chat_template(plain, add_generation_prompt=True, tokenize=False)


@pytest.mark.parametrize("processor", [{}, {"patch_size": None, "vision_feature_select_strategy": None}])
def test_directories_of_before_there_were_templates(path: Path, theirs: Any, tmp_path: Path, processor: Any) -> None:
    """The same prompts, from files that say neither how a chat reads nor how many pads a picture has."""
    old = write_llava(tmp_path)
    (old / "chat_template.json").unlink()
    change(old, "processor_config.json", num_additional_image_tokens=None, **processor)
    if not processor:
        (old / "processor_config.json").unlink()
    host, rng, image = host_of(old), random.Random(1), photo(60, 80)
    assert host.origins["chat template"] == "our own (no file holds one)"
    measure, _ = loaded(host, encoded(image, "PNG"))
    for _ in range(20):
        sent, turned, n = random_chat(rng, image)
        expected = theirs.apply_chat_template(turned, add_generation_prompt=True, tokenize=True, return_dict=True)
        layout = host.expand(host.render(chat_from_openai(sent)), [measure] * n)
        assert layout.input_ids.tolist() == list(expected["input_ids"][0])


# ---- pixels

SIZES = [
    (1, 1), (1, 2), (3, 3), (1, 150), (200, 1), (56, 56), (55, 57), (57, 55), (56, 300), (113, 331), (640, 480),
    (481, 641), (1280, 720), (301, 2900),
]  # fmt: skip


def assert_same_pixels(host: Processor, theirs: Any, data: bytes) -> None:
    image: Image.Image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    measure, pixels = loaded(host, data)
    assert measure.grid == (1, 4, 4) and pixels.shape == measure.shape == (16, 588)
    whole = pixels.reshape(4, 4, 3, 14, 14).transpose(2, 0, 3, 1, 4).reshape(3, 56, 56)
    raw = theirs.image_processor(image, do_rescale=False, do_normalize=False)["pixel_values"][0]
    assert np.array_equal(whole, raw)
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (CLIP_MEAN, CLIP_STD))
    normalised = theirs.image_processor(image)["pixel_values"][0]
    assert np.abs((whole.astype(np.float32) / 255 - mean) / std - normalised).max() < 1e-6


def test_pixels_of_many_sizes(path: Path, theirs: Any) -> None:
    with entries() as entry:
        for size in SIZES:
            with entry(size):
                assert_same_pixels(host_of(path), theirs, encoded(photo(*size), "PNG" if min(size) < 28 else "JPEG"))


def test_pixels_of_many_modes(path: Path, theirs: Any) -> None:
    with entries() as entry:
        for mode in ("RGB", "RGBA", "L", "LA", "P", "1"):
            image = with_alpha(90, 61) if mode in ("RGBA", "LA") else photo(90, 61)
            with entry(mode):
                assert_same_pixels(host_of(path), theirs, encoded(image.convert(mode), "PNG"))
    assert_same_pixels(host_of(path), theirs, encoded(photo(150, 70), "JPEG", orientation=6))


def test_a_picture_may_be_larger_before_its_centre_is_taken(tmp_path: Path) -> None:
    """And sizes may be plain numbers, as the oldest files have them."""
    wide = write_llava(tmp_path)
    change(wide, "preprocessor_config.json", **{**PIXELS, "size": 71, "crop_size": 56})
    for size in ((300, 200), (71, 90), (60, 60)):
        assert_same_pixels(
            host_of(wide), transformers.AutoProcessor.from_pretrained(wide), encoded(photo(*size), "PNG")
        )
