"""What an InternVL's directory may not say, by the message that ends the start; and its length and ends of answers."""

from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from configs.checkpoint import Checkpoint, CheckpointError
from configs.serve import EngineConfig
from model.engine.ranks.capacity import PlannedDevice, capacity
from model.families.internvl.sizes import SYSTEM
from model.registry import family_of
from server.requests.model_card import read_model_card
from tests.parity.harness import load_ours
from tests.published.edits import edit_json
from tests.published.layouts import config_of
from tests.tables import each_of
from tests.tiny.internvl import write_internvl, write_published_internvl
from tokenization.chat.dialects import chat_from_openai
from tokenization.processor import TemplateProcessor
from tokenization.text.template import ChatTemplate

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """In transformers' layout, and as published; nobody edits them."""
    root = tmp_path_factory.mktemp("both")
    twin = write_internvl(root / "twin")
    return twin, write_published_internvl(root / "published", twin)


def start(path: Path) -> None:
    checkpoint = Checkpoint(path)
    family = family_of(checkpoint)
    family.pixels(checkpoint)
    family.host(checkpoint, 1 << 24)
    load_ours(path)


def planned(path: Path) -> None:
    card = PlannedDevice(kind="npu", nbytes=1 << 30)
    capacity(Checkpoint(path, sizes_alone=True), EngineConfig(), card, 2048, (1,))


def at(*keys: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(values: dict[str, Any]) -> None:
        for key in keys[:-1]:
            values = values[key]
        values[keys[-1]] = value

    return change


@each_of(
    ("keys", "value", "words"),
    [
        (("llm_config", "model_type"), "internlm2", "model_type = 'internlm2' is not supported"),
        (("llm_config", "model_type"), "qwen3", "model_type = 'qwen3' is not supported"),
        (("llm_config", "rope_scaling"), {"type": "yarn", "factor": 2.0}, "'yarn' is not supported"),
        (("vision_config", "norm_type"), "batch", "norm_type = 'batch'"),
        (("min_dynamic_patch",), 2, "min_dynamic_patch = 2"),
        (("template",), "internlm2-chat", "template = 'internlm2-chat'"),
        (("select_layer",), -2, "select_layer = -2"),
        (("pad2square",), True, "pad2square = True"),
        (("ps_version",), "v1", "ps_version = 'v1'"),
        (("downsample_ratio",), 0.25, "downsample_ratio = 0.25"),
        (("force_image_size",), 448, "force_image_size = 448"),
        (("system_message",), 7, "'system_message' is 7, expected str"),
        (("use_thumbnail",), "yes", "'use_thumbnail' is 'yes', expected bool"),
    ],
)
def test_published_keys_that_are_refused(
    both: tuple[Path, Path], tmp_path: Path, keys: tuple[str, ...], value: Any, words: str
) -> None:
    """By a plan, too, which opens no processor."""
    path = copytree(both[1], tmp_path / "edited")
    edit_json(path, at(*keys, value=value))
    for refuse in (start, planned):
        with pytest.raises(CheckpointError, match=words):
            refuse(path)


@each_of(
    ("file", "keys", "value", "words"),
    [
        ("config.json", ("vision_config", "use_mean_pooling"), False, "use_mean_pooling = False"),
        ("config.json", ("vision_feature_layer",), -2, "vision_feature_layer = -2"),
        ("config.json", ("vision_feature_select_strategy",), "full", "vision_feature_select_strategy = 'full'"),
        ("config.json", ("vision_config", "image_size"), [56, 84], "image_size .* is no square"),
        ("config.json", ("vision_config", "image_size"), 70, "no even number of patches"),
        ("processor_config.json", ("image_seq_length",), 256, "image_seq_length = 256"),
        ("preprocessor_config.json", ("size", "height"), 384, "height = 384"),
        ("preprocessor_config.json", ("min_patches",), 2, "min_patches = 2"),
    ],
)
def test_keys_that_are_refused(
    both: tuple[Path, Path], tmp_path: Path, file: str, keys: tuple[str, ...], value: Any, words: str
) -> None:
    path = copytree(both[0], tmp_path / "edited")
    with pytest.raises(CheckpointError, match=words):
        start(edit_json(path, at(*keys, value=value), file))


@each_of("said", ["You are a ferry.", 'Say "é" \\ }} {# 船 🛳\n<|im_end|> {{ messages }}', "", None])
def test_the_system_message_of_a_published_file(both: tuple[Path, Path], tmp_path: Path, said: str | None) -> None:
    """As conversation.py of the published code has it (MPT): the system's turn first, closed by the separator."""
    path = copytree(both[1], tmp_path / "edited")
    edit_json(path, at("system_message", value=said))
    checkpoint = Checkpoint(path)
    processor = family_of(checkpoint).host(checkpoint, 1 << 24)
    assert isinstance(processor, TemplateProcessor)
    template = processor.template
    user = {"role": "user", "content": "Hi"}
    answer = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    system = SYSTEM if said is None else said
    assert prompt_of(template, user) == f"<|im_start|>system\n{system}<|im_end|>\n{answer}"
    own = {"role": "system", "content": "Mine."}
    assert prompt_of(template, own, user) == f"<|im_start|>system\nMine.<|im_end|>\n{answer}"


def prompt_of(template: ChatTemplate, *messages: dict[str, str]) -> str:
    return "".join(text for text, _ in template.render(chat_from_openai(list(messages))))


def test_length_and_ends_of_answers(both: tuple[Path, Path]) -> None:
    for path in both:
        start(path)  # what the others edit is refused by their edits alone
        card = read_model_card(config_of(path))
        assert card.max_model_len == 8192
        assert card.defaults.eos_ids == (card.tokenizer.special["<|im_end|>"],)
