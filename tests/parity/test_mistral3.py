"""Mistral Small 3.1 against transformers, from the same files: ids, pixels, logits, tokens of mixed batches."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from configs.serve import MediaConfig
from tests.model.engine.engine_harness import engine_at, engine_harness_at, picture
from tests.parity.engine_check import Parts, Setup, prepared_one_by_one, submit_all
from tests.parity.harness import OurRun, load_hf, load_ours, make_sample
from tests.parity.pictures import MEMBERS, THREE, Theirs, compare_logits, sample_of, setup_at
from tests.parity.pixtral_reference import let_it_load
from tests.published.edits import edit_json
from tests.published.layouts import host_of
from tests.samples.pictures import encoded, photo, with_alpha
from tests.tables import entries
from tests.tiny.mistral3 import HUB_NAMES, VISION, write_mistral3
from tests.tiny.qwen2_vl import write_json
from tests.tiny.random_weights import write_random_weights
from tokenization.chat.dialects import chat_from_openai
from tokenization.media.source import Source
from tokenization.processor import Processor, StageClock

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    let_it_load()
    path, root = write_mistral3(tmp_path_factory.mktemp("tiny")), tmp_path_factory.mktemp("shm") / "root"
    return setup_at(path, root, {**MEMBERS, "three": THREE})


@pytest.mark.parametrize(("tokens", "every"), [(7, 3), (2048, 0)])
def test_mixed_batches(setup: Setup, tokens: int, every: int, tmp_path: Path) -> None:
    with engine_harness_at(setup.path, tmp_path / "root") as harness:
        submit_all(setup, harness, engine_at(setup.model, harness.root, tokens=tokens), every)


@pytest.fixture(scope="module")
def theirs(setup: Setup) -> Theirs:
    return Theirs.at(setup.path)


SIZES = [
    (1, 1), (28, 28), (29, 28), (28, 57), (307, 308), (309, 308), (308, 620), (617, 310), (640, 480), (1023, 31),
    (3, 300), (308, 1), (1280, 720), (1000, 93), (93, 1000),  # the last two: rounded, not cut off, they get another row
]  # fmt: skip


def test_pixels_and_sizes(setup: Setup, theirs: Theirs) -> None:
    """To the last bit, of pictures at every border."""
    host = host_of(setup.path)
    with entries() as entry:
        for size, mode in [*((size, "RGB") for size in SIZES), *(((308, 620), mode) for mode in ("RGBA", "L", "P"))]:
            with entry((size, mode)):
                check_pixels(host, theirs, (with_alpha(*size) if mode == "RGBA" else photo(*size)).convert(mode))


def check_pixels(host: Processor, theirs: Theirs, image: Image.Image) -> None:
    source = Source(kind="image", param="", data=encoded(image, "PNG"))
    measure = host.measure(source, MediaConfig())
    found = host.load(source, measure, MediaConfig(), StageClock())
    assert found.shape == measure.shape and measure.n_tokens * 4 == len(found)
    patches = {"patch_size": {"height": 28, "width": 28}}
    raw = theirs.processor.image_processor(image, do_rescale=False, do_normalize=False, **patches)["pixel_values"][0]
    _, rows, columns = measure.grid
    blocks = found.reshape(rows // 2, columns // 2, 2, 2, 3, 14, 14)
    assert np.array_equal(blocks.transpose(4, 0, 2, 5, 1, 3, 6).reshape(3, rows * 14, columns * 14), raw)


def test_ids_of_a_longer_chat(setup: Setup, theirs: Theirs) -> None:
    """A system message, several turns, pictures of several sizes in one message."""
    sizes = [(60, 60), (150, 90), (308, 29)]
    pictures = [photo(*size) for size in sizes]
    shown = [{"type": "image_url", "image_url": {"url": "data:,x"}}, {"type": "text", "text": "a\n\nb"}]
    sent = [
        {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
        {"role": "user", "content": shown * 2},
        {"role": "assistant", "content": [{"type": "text", "text": "one [IMG two"}]},
        {"role": "user", "content": shown},
    ]
    turned: list[dict[str, Any]] = json.loads(json.dumps(sent))
    parts = [part for turn in turned for part in turn["content"] if part["type"] == "image_url"]
    for part, image in zip(parts, pictures, strict=True):
        part |= {"type": "image", "image": image}
    expected = theirs.processor.apply_chat_template(
        turned, add_generation_prompt=True, tokenize=True, return_dict=True
    )["input_ids"][0]
    host = host_of(setup.path)
    sources = [Source(kind="image", param="", data=encoded(image, "PNG")) for image in pictures]
    measures = [host.measure(source, MediaConfig()) for source in sources]
    layout = host.expand(host.render(chat_from_openai(sent)), measures)
    assert layout.input_ids.tolist() == list(expected)
    ends = [[int(layout.input_ids[start + n]) for start, n in spans] for spans in layout.spans]
    special = host.tokenizer.special
    assert ends == [[special["[IMG_BREAK]"]] * (m.n_delimiters - 1) + [special["[IMG_END]"]] for m in measures]


@pytest.mark.parametrize(
    "change",
    [
        {"vision_config": {**VISION, "hidden_act": "gelu"}},
        {"vision_config": {**VISION, "hidden_act": None}},
        {"vision_config": {**VISION, "rope_theta": 500.0}},
        {"multimodal_projector_bias": True},
        {"tie_word_embeddings": None},
        {"text_config": {"rms_norm_eps": 0.1}},  # the projector's norm has it, too
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_choices(tmp_path: Path, change: dict[str, Any]) -> None:
    """Logits of a prompt with two pictures. None: the key is not there."""
    let_it_load()
    path = edited(write_mistral3(tmp_path / "tiny"), change)
    parts: Parts = [picture(150, 90, 1), "red", picture(60, 200, 2), "what is it?"]
    with engine_harness_at(path, tmp_path / "root") as harness, torch.inference_mode():
        theirs = Theirs.at(path)
        for _, generate in prepared_one_by_one(harness, {"it": parts}):
            sample = sample_of(path, generate, harness.root)
            ids, media = theirs.inputs(parts)
            assert sample.ids.tolist() == ids.tolist()
            compare_logits(load_ours(path), theirs.model, sample, media, str(change))


def edited(path: Path, change: dict[str, Any]) -> Path:
    """With other keys in config.json, and random weights of the network that they describe."""
    values = json.loads((path / "config.json").read_text())
    text = values["text_config"] | change.get("text_config", {})
    values |= {**change, "text_config": text}
    vision = {key: value for key, value in values["vision_config"].items() if value is not None}
    write_json(path / "config.json", {key: value for key, value in values.items() if value is not None} | {
        "vision_config": vision
    })  # fmt: skip
    (path / "model.safetensors").unlink()
    return write_random_weights(path, HUB_NAMES)


def test_a_head_beside_an_entry_that_ties_it(tmp_path: Path) -> None:
    """The class ties where the key is missing; transformers takes the head on disk all the same, and so do we."""
    path = edit_json(write_mistral3(tmp_path), lambda config: config.pop("tie_word_embeddings"))
    sample = make_sample(path, [12])
    expected = load_hf(path)(input_ids=sample.ids[None], use_cache=False).logits[0].detach()
    torch.testing.assert_close(OurRun(load_ours(path)).whole(sample), expected, rtol=0, atol=1e-4)
