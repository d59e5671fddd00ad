"""What Mistral Small 3.1's files may say, what stops the load, and how large its pictures are seen."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection
from configs.serve import MediaConfig
from model.families.mistral3.recipe import _decoder_spec
from model.families.mistral3.sizes import Pictures, text_section, vision_section
from model.registry import family_of
from tests.parity.harness import load_ours
from tests.published.edits import edit_json, edit_tensors
from tests.samples.pictures import encoded, photo
from tests.tables import each_of
from tests.tiny.mistral3 import write_mistral3
from tokenization.chat.dialects import chat_from_openai
from tokenization.chat.errors import ChatError
from tokenization.chat.options import MediaOptions
from tokenization.chat.rendering import with_rendering
from tokenization.media.source import Source
from tokenization.processor import Processor

pytestmark = pytest.mark.network

Change = Callable[[dict[str, Any]], object]
PICTURES, WORDS = "preprocessor_config.json", "processor_config.json"
LIMITS = MediaConfig()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_mistral3(tmp_path)


def host_of(path: Path, max_pixels: int = LIMITS.max_pixels) -> Processor:
    checkpoint = Checkpoint(path)
    return family_of(checkpoint).host(checkpoint, max_pixels)


def of_text(**values: Any) -> Change:
    return lambda config: config["text_config"].update(values)


def of_vision(**values: Any) -> Change:
    return lambda config: config["vision_config"].update(values)


def of_all(**values: Any) -> Change:
    return lambda config: config.update(values)


def test_sparse_files_take_the_defaults_of_the_published_classes() -> None:
    """Without a section the model's own class fills it, with one the section's own class."""
    whole, sparse = (
        _decoder_spec(text_section(ConfigSection(values, "found")))
        for values in ({}, {"text_config": {"model_type": "mistral"}})
    )
    assert (whole.hidden, whole.inter, whole.layers, whole.head_dim, whole.eps) == (5120, 32768, 40, 128, 1e-5)
    assert (sparse.hidden, sparse.inter, sparse.layers, sparse.head_dim, sparse.eps) == (4096, 14336, 32, 128, 1e-6)
    towers = [vision_section(ConfigSection(values, "found")) for values in ({}, {"vision_config": {"head_dim": 64}})]
    assert [tower.read(int, "patch_size") for tower in towers] == [14, 16]


@each_of(
    ("change", "said"),
    [
        (of_text(model_type="ministral"), "text_config: model_type = 'ministral'"),
        (of_text(hidden_act="gelu"), "hidden_act = 'gelu'"),
        (of_text(sliding_window=4096), "sliding_window = 4096"),
        (of_text(rope_scaling={"type": "yarn", "factor": 2.0}), "type = 'yarn'"),
        (of_text(vocab_size=300), "'image_token_index' is 405, for which vocab_size 300 leaves no embedding"),
        (of_text(head_dim=None), "asks for"),
        (of_vision(model_type="siglip_vision_model"), "vision_config: model_type = 'siglip_vision_model'"),
        (of_vision(num_channels=1), "num_channels = 1"),
        (of_vision(hidden_act="quick_gelu"), "hidden_act = 'quick_gelu'"),
        (of_vision(head_dim=8), "head_dim = 8"),
        (of_vision(rope_parameters={"rope_type": "linear"}), "rope_type = 'linear'"),
        (of_all(projector_hidden_act="relu"), "projector_hidden_act = 'relu'"),
        (of_all(vision_feature_layer=-2), "vision_feature_layer = -2"),
        (of_all(vision_feature_layer=[-1, -2]), "vision_feature_layer = "),
        (of_all(multimodal_projector_bias=True), r"linear_1\.bias"),
        (of_all(spatial_merge_size=1), "spatial_merge_size = 2"),
    ],
    copied=("path",),
)
def test_what_is_not_supported_stops_the_load(path: Path, change: Change, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        load_ours(edit_json(path, change))


@each_of(
    ("file", "values", "said"),
    [
        (PICTURES, {"do_resize": False}, "do_resize = False"),
        (PICTURES, {"do_convert_rgb": False}, "do_convert_rgb = False"),
        (PICTURES, {"do_center_crop": True}, "do_center_crop = True"),
        (PICTURES, {"resample": 2}, "resample = 2"),
        (PICTURES, {"size": {"height": 56, "width": 56}}, "size: required key 'longest_edge' is missing"),
        (PICTURES, {"size": {"longest_edge": 0}}, "size: 'longest_edge' is 0"),
        (WORDS, {"patch_size": 16}, "patch_size = 16"),
        (WORDS, {"patch_size": None}, "patch_size = 16"),
        (WORDS, {"spatial_merge_size": None}, "spatial_merge_size = 1"),
        (WORDS, {"image_token": "[INST]"}, r"is 405, not the id of '\[INST\]', the image_token of processor_config"),
        (
            WORDS,
            {"image_end_token": "[X]"},
            r"no added token '\[X\]', which is the image_end_token of processor_config",
        ),
    ],
    copied=("path",),
)
def test_files_on_pictures_that_do_not_fit(path: Path, file: str, values: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        host_of(edit_json(path, lambda found: found.update(values), file))


def test_marks_are_never_sampled(path: Path) -> None:
    host, model = host_of(path), load_ours(path)
    special = host.tokenizer.special
    assert model.banned_ids == sorted(special[text] for text in ("[IMG]", "[IMG_BREAK]", "[IMG_END]"))


def test_a_tensor_that_is_left_over_is_named(path: Path) -> None:
    name = "multi_modal_projector.linear_1.bias"
    extra = torch.zeros(64).numpy()
    with pytest.raises(CheckpointError, match=r"does not use: multi_modal_projector\.linear_1\.bias"):
        load_ours(edit_tensors(path, lambda tensors: tensors.update({name: extra})))


@each_of("grid", [(1, 3, 4), (2, 4, 4), (1, 2, 4)], copied=("path",))
def test_pixels_that_do_not_fit(path: Path, grid: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="do not fit an image"):
        load_ours(path).encode("image", [torch.zeros((16, 588), dtype=torch.uint8)], [grid])[0]


@each_of("pixels", [28 * 28 * 2, 28 * 28 * 3, 28 * 28 * 30, 10**5])
@each_of("size", [(300, 200), (61, 300), (1000, 1001), (28, 500), (29, 29), (2000, 40)])
def test_no_picture_has_more_pixels_than_allowed(size: tuple[int, int], pixels: int) -> None:
    """And it is the largest such that has its shape."""
    pictures = Pictures(longest=308, patch=14, merge=2)
    found = pictures.sized(*size, pixels)
    assert math.prod(found) <= pixels and not found[0] % 28 and not found[1] % 28
    every = [pictures.fitted(*size, longest) for longest in range(1, 309)]
    assert math.prod(found) == max(math.prod(one) for one in every if math.prod(one) <= pixels)


def test_the_largest_picture() -> None:
    pictures = Pictures(longest=300, patch=14, merge=2)  # 11 tokens along a side
    assert pictures.largest(10**9, 10**9) == (11, 11)
    assert pictures.largest(28 * 28 * 20, 10**9) == (2, 10)
    assert pictures.largest(10**9, 30) == (3, 9) and pictures.largest(10**9, 1) is None
    assert pictures.largest(27 * 28, 10**9) is None


def test_bounds_on_pixels(path: Path) -> None:
    host = host_of(path, max_pixels=28 * 28 * 40)
    source = Source(kind="image", param="here", data=encoded(photo(300, 200), "PNG"))
    assert host.measure(source, LIMITS).grid == (1, 10, 16)
    reduced = host.measure(source, LIMITS).reduced
    assert reduced is not None and (reduced.size, reduced.wanted) == ((224, 140), (308, 224))
    fewer = Source(kind="image", param="here", data=source.data, options=MediaOptions(max_pixels=28 * 28 * 6))
    assert host.measure(fewer, LIMITS).grid == (1, 4, 6)
    for options in (MediaOptions(min_pixels=3136), MediaOptions(max_pixels=700)):
        with pytest.raises(ChatError) as caught:
            host.measure(Source(kind="image", param="here", data=source.data, options=options), LIMITS)
        assert caught.value.param is None
    image = {"type": "image_url", "image_url": {"url": "data:,x"}}
    chat = chat_from_openai([{"role": "user", "content": [image]}])
    with pytest.raises(ChatError, match="min_pixels: this model enlarges no picture"):
        host.fit(with_rendering(chat, {"mm_processor_kwargs": {"min_pixels": 3136}}))


def test_a_strip_of_which_nothing_is_left_is_refused(path: Path) -> None:
    source = Source(kind="image", param="here", data=encoded(photo(700, 1), "PNG"))
    with pytest.raises(ChatError, match="a picture of 700 x 1 pixels has no place"):
        host_of(path).measure(source, LIMITS)
