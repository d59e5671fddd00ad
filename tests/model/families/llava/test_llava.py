"""What LLaVA-1.5's files may say, what stops the load, and what a client may not ask of its pictures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection
from configs.serve import MediaConfig
from model.families.llava.recipe import _decoder_spec
from model.families.llava.sizes import pictures_of, vision_config
from model.registry import family_of
from tests.parity.harness import load_ours
from tests.published.edits import edit_json, edit_tensors
from tests.samples.pictures import encoded, photo
from tests.tables import each_of
from tests.tiny.llava import write_llava
from tokenization.chat.dialects import chat_from_openai
from tokenization.chat.errors import ChatError
from tokenization.chat.options import MediaOptions
from tokenization.chat.rendering import with_rendering
from tokenization.media.source import Source
from tokenization.processor import Processor

pytestmark = pytest.mark.network

Change = Callable[[dict[str, Any]], object]
PICTURES = "preprocessor_config.json"
LIMITS = MediaConfig()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_llava(tmp_path)


def host_of(path: Path) -> Processor:
    checkpoint = Checkpoint(path)
    return family_of(checkpoint).host(checkpoint, LIMITS.max_pixels)


def of_text(**values: Any) -> Change:
    return lambda config: config["text_config"].update(values)


def of_vision(**values: Any) -> Change:
    return lambda config: config["vision_config"].update(values)


def of_all(**values: Any) -> Change:
    return lambda config: config.update(values)


def test_sparse_files_take_the_defaults_of_the_published_classes() -> None:
    """The hub's text_config names four keys; without vision_config at all the model's own class fills it."""
    hub = _decoder_spec(ConfigSection({"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}, "hub"))
    assert (hub.hidden, hub.inter, hub.layers, hub.heads, hub.kv_heads, hub.head_dim) == (4096, 11008, 32, 32, 32, 128)
    assert hub.eps == 1e-5 and not hub.qkv_bias
    assert _decoder_spec(ConfigSection({}, "empty")).eps == 1e-6
    whole = pictures_of(ConfigSection({}, "empty"))
    assert (whole.pixels, whole.patch, whole.n_tokens) == (336, 14, 576)
    assert pictures_of(ConfigSection({"vision_feature_select_strategy": "full"}, "full")).n_tokens == 577
    clip = vision_config(ConfigSection({"vision_config": {"model_type": "clip_vision_model"}}, "sparse"))
    assert (clip.read(int, "image_size"), clip.read(int, "patch_size"), clip.read(int, "hidden_size")) == (224, 32, 768)


@each_of(
    ("change", "said"),
    [
        (of_text(model_type="mistral"), "text_config: model_type = 'mistral'"),
        (of_text(hidden_act="gelu"), "hidden_act = 'gelu'"),
        (of_text(attention_bias=True), "attention_bias = True"),
        (of_text(rope_scaling={"type": "linear", "factor": 2.0}), "type = 'linear'"),
        (of_vision(model_type="siglip_vision_model"), "vision_config: model_type = 'siglip_vision_model'"),
        (of_vision(hidden_act="gelu"), "hidden_act = 'gelu'"),
        (of_all(projector_hidden_act="relu"), "projector_hidden_act = 'relu'"),
        (of_all(vision_feature_select_strategy="cls"), "vision_feature_select_strategy = 'cls'"),
        (of_all(vision_feature_layer=[-2, -5]), "'vision_feature_layer' is \\[-2, -5\\], expected int"),
        (of_all(vision_feature_layer=-4), "vision_feature_layer -4 is no output of 3 blocks"),
        (of_text(vocab_size=300), "'image_token_index' is 409, for which vocab_size 300 leaves no embedding"),
        (of_text(head_dim=8), "asks for"),
    ],
    copied=("path",),
)
def test_what_is_not_supported_stops_the_load(path: Path, change: Change, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        load_ours(edit_json(path, change))


@each_of(
    ("values", "said"),
    [
        ({"do_pad": True}, "do_pad = True"),
        ({"do_center_crop": False}, "do_center_crop = False"),
        ({"resample": 2}, "resample = 2"),
        ({"size": {"height": 56, "width": 56}}, "size: required key 'shortest_edge' is missing"),
        ({"size": {"shortest_edge": 40}}, "size is 40, less than the 56 that are cut out of it"),
        ({"crop_size": {"height": 56, "width": 70}}, r"crop_size is \[56, 70\], but the tower of config.json takes"),
        ({"crop_size": None}, r"crop_size is \[224\], but the tower of config.json takes pictures of 56"),
    ],
    copied=("path",),
)
def test_files_on_pictures_that_do_not_fit(path: Path, values: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=f"{PICTURES}: {said}"):
        host_of(edit_json(path, lambda file: file.update(values), PICTURES))


def test_blocks_behind_the_one_that_is_taken_need_not_be_there(path: Path) -> None:
    names = set(load_file(path / "model.safetensors"))
    last = [name for name in names if ".layers.2." in name and "vision" in name or "post_layernorm" in name]
    assert len(last) == 18

    def cut(tensors: dict[str, Any]) -> None:
        for name in last:
            del tensors[name]

    assert len(load_ours(edit_tensors(path, cut)).encoders["image"].blocks) == 2  # type: ignore[attr-defined]


def test_a_tensor_that_is_missing_or_left_over_is_named(path: Path) -> None:
    def swap(tensors: dict[str, Any]) -> None:
        tensors["multi_modal_projector.linear_3.bias"] = tensors["multi_modal_projector.linear_2.bias"]

    with pytest.raises(CheckpointError, match=r"multi_modal_projector\.linear_3\.bias"):
        load_ours(edit_tensors(path, swap))


def test_bounds_on_pixels_are_refused(path: Path) -> None:
    host = host_of(path)
    source = Source(kind="image", param="here", data=encoded(photo(60, 60), "PNG"))
    assert host.measure(source, LIMITS).size == (60, 60)
    bounded = Source(kind="image", param="here", data=source.data, options=MediaOptions(max_pixels=3136))
    with pytest.raises(ChatError, match="this model sees every picture at 56 x 56: it takes no min_pixels"):
        host.measure(bounded, LIMITS)
    image = {"type": "image_url", "image_url": {"url": "data:,x"}}
    chat = chat_from_openai([{"role": "user", "content": [image]}])
    with pytest.raises(ChatError, match="mm_processor_kwargs: this model sees every picture at 56 x 56"):
        host.fit(with_rendering(chat, {"mm_processor_kwargs": {"max_pixels": 3136}}))


@each_of("size", [(1, 201), (402, 2)], copied=("path",))
def test_a_strip_is_refused(path: Path, size: tuple[int, int]) -> None:
    """Before its centre is taken it would be resized to any length."""
    with pytest.raises(ChatError, match="one side is more than 200 times the other") as caught:
        host_of(path).measure(Source(kind="image", param="here", data=encoded(photo(*size), "PNG")), LIMITS)
    assert caught.value.param is None
