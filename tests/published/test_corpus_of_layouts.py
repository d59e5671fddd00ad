"""The corpus of published layouts: ids, pixels, mel frames, logits as transformers makes them of the same files.

A test is of one model, and looks at every layout that there is of it: a failure names the layout.
"""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from configs.checkpoint import Checkpoint
from configs.serve import MediaConfig
from model.families.qwen2.recipe import pixel_specs
from model.registry import family_of
from tests.layouts import marked_pieces, specials_first
from tests.layouts.chats import WORDS, hub_form, random_messages
from tests.layouts.directories import Layout, layouts, write_layout
from tests.layouts.templates import OF_PARTS, PICTURES_FIRST
from tests.model.engine.engine_harness import picture
from tests.parity.fuyu_reference import load_processor, their_prompt
from tests.parity.harness import OurRun, Sample, load_hf, load_ours
from tests.parity.in_rows import hf_rows
from tests.parity.pixtral_reference import let_it_load
from tests.parity.theirs import transformers
from tests.samples.pictures import encoded
from tests.samples.sounds import make_wav
from tests.samples.soundtracks import tone
from tests.tables import entries
from tokenization.chat.dialects import chat_from_openai
from tokenization.media.source import Source
from tokenization.processor import Processor, StageClock

pytestmark = pytest.mark.network

LIMITS = MediaConfig(max_pixels=1 << 28)  # the server's own caps are another matter
LARGE = [(1300, 900), (5000, 4000)]  # the second is above every published bound
OF_MODEL = {
    model: [layout for layout in layouts() if layout.model == model]
    for model in dict.fromkeys(one.model for one in layouts())
}
SEEING = [model for model in OF_MODEL if "VL" in model or "Omni" in model]
HEARING = [model for model in OF_MODEL if "Audio" in model or "Omni" in model]
Directories = Callable[[str], Iterator[tuple[Layout, Path]]]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Directories:
    """Every layout of a model on disk, written once, without weights."""
    made: dict[Layout, Path] = {}

    def of(model: str) -> Iterator[tuple[Layout, Path]]:
        for layout in OF_MODEL[model]:
            if layout not in made:
                made[layout] = write_layout(layout, tmp_path_factory.mktemp("layouts") / str(layout), weights=False)
            yield layout, made[layout]

    return of


def host_of(path: Path) -> Processor:
    checkpoint = Checkpoint(path)
    return family_of(checkpoint).processor(checkpoint, LIMITS.max_pixels)


# ---- what transformers makes of the same files


def their_template(path: Path, tokenizer: Any) -> str:
    """The one that the processor class finds; where it finds none, its own, else the tokenizer's.

    Without any it takes no chats: its prompts were written by hand then, as the later template writes them.
    """
    kind = getattr(transformers, processor_class(path))
    found = kind.get_processor_dict(str(path))[0].get("chat_template")
    if found is None and hasattr(kind, "default_chat_template"):
        found = kind.default_chat_template.fget(None)
    return str(found or tokenizer.chat_template or PICTURES_FIRST)


def processor_class(path: Path) -> str:
    model_type = Checkpoint(path).config.read(str, "model_type")
    return {
        "qwen2_vl": "Qwen2VLProcessor", "qwen2_5_vl": "Qwen2_5_VLProcessor", "qwen2_audio": "Qwen2AudioProcessor",
        "qwen2_5_omni": "Qwen2_5OmniProcessor", "llava": "LlavaProcessor", "vipllava": "LlavaProcessor",
        "qwen3_vl": "Qwen3VLProcessor",
        "mistral3": "ProcessorMixin",  # its own class, which finds the same template, wants torchvision
    }[model_type]  # fmt: skip


@pytest.mark.parametrize("model", [model for model in OF_MODEL if model != marked_pieces.MODEL])
def test_ids(directories: Directories, model: str) -> None:
    with entries() as entry:
        for layout, path in directories(model):
            with entry(layout):
                check_ids(path)


def check_ids(path: Path) -> None:
    host, tokenizer = host_of(path), transformers.AutoTokenizer.from_pretrained(str(path))
    template, rng = their_template(path, tokenizer), Random(1)
    for _ in range(20):
        messages = random_messages(rng, sorted(host.modalities))
        turned = hub_form(messages, lists=template in OF_PARTS)
        text = tokenizer.apply_chat_template(turned, chat_template=template, add_generation_prompt=True, tokenize=False)
        opened = text.startswith(tokenizer.bos_token or "\0")  # by the template: no processor opens it again
        ids = tokenizer(text, add_special_tokens=not opened)["input_ids"]
        assert host.render(chat_from_openai(messages)) == list(ids)
        assert [host.tokenizer.entry(token_id) for token_id in ids] == tokenizer.convert_ids_to_tokens(ids)


@pytest.mark.parametrize("model", SEEING)
def test_pixels(directories: Directories, model: str) -> None:
    with entries() as entry:
        for layout, path in directories(model):
            with entry(layout):
                check_pixels(path)


def check_pixels(path: Path) -> None:
    host = host_of(path)
    theirs, spec = transformers.Qwen2VLImageProcessorPil.from_pretrained(str(path)), pixel_specs(Checkpoint(path))
    image = picture(150, 90, 1)
    source = Source(kind="image", param="", data=encoded(image, "PNG"))
    measure = host.measure(source, LIMITS)
    patches = host.load(source, measure, LIMITS, StageClock())
    out = theirs([image], return_tensors="np")
    assert tuple(out["image_grid_thw"][0].tolist()) == measure.grid
    mean, std = (np.array(values)[None, :, None] for values in (spec["image"].mean, spec["image"].std))
    normal = (patches.reshape(len(patches), 3, -1) * spec["image"].rescale - mean) / std
    first = out["pixel_values"].reshape(len(patches), 3, 2, -1)[:, :, 0]
    assert np.abs(normal - first).max() < 1e-5
    for size in LARGE:
        assert host.measure(blank(size), LIMITS).grid[1:] == grid_of(theirs, *size)


@cache
def blank(size: tuple[int, int]) -> Source:
    return Source(kind="image", param="", data=encoded(Image.new("1", size), "PNG"))


def test_ids_and_pixels_in_rows(directories: Directories) -> None:
    """Of a processor without a template: its picture comes first, and our chats are lines."""
    with entries() as entry:
        for layout, path in directories(marked_pieces.MODEL):
            with entry(layout):
                check_rows(path)


def check_rows(path: Path) -> None:
    host, theirs, rng = host_of(path), load_processor(path), Random(1)
    for i in range(2):
        image = picture(rng.randrange(40, 300), rng.randrange(40, 300), i) if i else picture(2000, 120, i)
        words = [text for text in rng.sample(WORDS, 3) if text]
        chat = chat_from_openai([{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "x"}}, *({"type": "text", "text": text} for text in words),
        ]}])  # fmt: skip
        source = Source(kind="image", param="", data=encoded(image, "PNG"))
        measure = host.measure(source, LIMITS)
        ids, patches = their_prompt(theirs, "".join(words).removesuffix("\n") + "\n", image)
        assert host.expand(host.render(chat), [measure]).input_ids.tolist() == ids
        pixels = torch.from_numpy(host.load(source, measure, LIMITS, StageClock()))
        assert (hf_rows(pixels) - patches).abs().max() < 1e-6


@pytest.mark.parametrize("model", [model for model in OF_MODEL if "llava" in model])
def test_pixels_of_one_size(directories: Directories, model: str) -> None:
    with entries() as entry:
        for layout, path in directories(model):
            with entry(layout):
                check_squares(path)


def check_squares(path: Path) -> None:
    host, theirs = host_of(path), transformers.LlavaImageProcessorPil.from_pretrained(str(path))
    for image in (picture(500, 350, 1), picture(90, 400, 2)):
        source = Source(kind="image", param="", data=encoded(image, "PNG"))
        measure = host.measure(source, LIMITS)
        patches = host.load(source, measure, LIMITS, StageClock()).reshape(24, 24, 3, 14, 14)
        whole = patches.transpose(2, 0, 3, 1, 4).reshape(3, 336, 336)
        assert measure.n_tokens == 576
        raw = theirs(image, do_rescale=False, do_normalize=False, return_tensors="np")["pixel_values"][0]
        assert np.array_equal(whole, raw)


def test_pixels_stretched_to_whole_tokens(directories: Directories) -> None:
    let_it_load()
    ((_, path),) = directories(specials_first.MODEL)
    host, theirs = host_of(path), transformers.AutoImageProcessor.from_pretrained(str(path))
    for image in (picture(500, 350, 1), picture(90, 400, 2), picture(2100, 700, 3)):  # the last one is scaled down
        source = Source(kind="image", param="", data=encoded(image, "PNG"))
        measure = host.measure(source, LIMITS)
        _, rows, columns = measure.grid
        found = host.load(source, measure, LIMITS, StageClock()).reshape(rows // 2, columns // 2, 2, 2, 3, 14, 14)
        whole = found.transpose(4, 0, 2, 5, 1, 3, 6).reshape(3, rows * 14, columns * 14)
        tokens = {"patch_size": {"height": 28, "width": 28}}  # as its processor calls it, which knows what is merged
        raw = theirs(image, do_rescale=False, do_normalize=False, return_tensors="np", **tokens)["pixel_values"][0]
        assert np.array_equal(whole, raw)


def grid_of(processor: Any, width: int, height: int) -> tuple[int, int]:
    """Rows and columns of patches that transformers cuts a picture into, by its own rule and the directory's bounds."""
    size = processor.size
    rows, columns = transformers.models.qwen2_vl.image_processing_pil_qwen2_vl.smart_resize(
        height, width, processor.patch_size * processor.merge_size, size["shortest_edge"], size["longest_edge"]
    )
    return rows // processor.patch_size, columns // processor.patch_size


@pytest.mark.parametrize("model", HEARING)
def test_mel_frames(directories: Directories, model: str) -> None:
    with entries() as entry:
        for layout, path in directories(model):
            with entry(layout):
                check_mel_frames(path)


def check_mel_frames(path: Path) -> None:
    host = host_of(path)
    theirs = transformers.WhisperFeatureExtractor.from_pretrained(str(path))
    samples = tone(32321, 3)
    source = Source(kind="audio", param="", data=make_wav(samples))
    measure = host.measure(source, LIMITS)
    mel = host.load(source, measure, LIMITS, StageClock())
    out = theirs(
        (samples / 32768).astype(np.float32), sampling_rate=16000, return_attention_mask=True, return_tensors="np",
        padding="max_length", max_length=min(theirs.n_samples, 480000),
    )  # fmt: skip
    assert int(out["attention_mask"].sum()) == measure.grid[2]
    assert np.abs(mel[: measure.grid[2]] - out["input_features"][0].T[: measure.grid[2]]).max() < 2e-4
    longest = [item for item in host.largest(LIMITS, 1 << 20) if item.kind == "audio"]
    assert [item.grid[2] for item in longest] == [theirs.nb_max_frames]


@pytest.mark.served
@pytest.mark.parametrize("model", OF_MODEL)
@pytest.mark.filterwarnings("ignore:`rope_scaling` is deprecated:FutureWarning")  # a key that transformers 4 saved
@torch.inference_mode()
def test_logits(model: str, tmp_path: Path) -> None:
    """Of text: towers are compared where a server answers (`make layouts`), but loaded here, too."""
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 400, 24))
    nowhere = torch.empty(0, dtype=torch.int64)
    sample = Sample(ids=ids, positions=torch.arange(len(ids)).expand(3, -1), grids=(), pixels=(), pads=nowhere)
    with entries() as entry:
        for layout in OF_MODEL[model]:
            with entry(layout):
                path = write_layout(layout, tmp_path / str(layout))
                theirs = load_hf(path)(input_ids=ids[None], use_cache=False).logits[0].float()
                assert (OurRun(load_ours(path)).whole(sample) - theirs).abs().max() < 1e-4
