"""Changes that turn a tiny checkpoint into one as the hub has it or as transformers 5 saves it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from configs.checkpoint import Checkpoint
from configs.serve import MediaConfig, ModelConfig, ServeConfig
from model.registry import family_of
from tests.tiny.qwen2_5_omni import write_qwen2_5_omni
from tests.tiny.qwen2_5_vl import write_qwen2_5_vl
from tests.tiny.qwen2_audio import write_qwen2_audio
from tests.tiny.qwen2_vl import write_json, write_qwen2_vl
from tokenization.processor import Processor

# What Qwen2's text models render, and what lies in the directories of models that were made of them.
TEXT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WRITERS: dict[str, Callable[[Path], Path]] = {
    "qwen2_vl": write_qwen2_vl,
    "qwen2_5_vl": write_qwen2_5_vl,
    "qwen2_5_omni": write_qwen2_5_omni,
    "qwen2_audio": write_qwen2_audio,
}
SEEING = ("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni")


def change(path: Path, file: str, **values: Any) -> None:
    """Set keys of a JSON file, which need not be there; None takes a key away."""
    old = json.loads((path / file).read_text()) if (path / file).is_file() else {}
    write_json(path / file, {key: value for key, value in {**old, **values}.items() if value is not None})


def audio_as_published(path: Path, *, template: str | None = TEXT_TEMPLATE) -> Path:
    """Qwen2-Audio as on the hub, whose one template is the text models'. None: the base model, which has none."""
    write_qwen2_audio(path)
    (path / "chat_template.json").unlink()
    change(path, "tokenizer_config.json", chat_template=template)
    return path


def host_of(path: Path) -> Processor:
    """The host half as server and workers make it."""
    checkpoint = Checkpoint(path)
    return family_of(checkpoint).host(checkpoint, MediaConfig().max_pixels)


def config_of(path: Path) -> ServeConfig:
    return ServeConfig(model=ModelConfig(path=path, served_name="x"))
