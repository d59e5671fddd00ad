"""What a directory whose special tokens come before the ordinary ones (Mistral Small 3.1's) holds at tiny width."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from tests.layouts.templates import TEMPLATES
from tests.tiny.qwen2_vl import trained_tokenizer

MODEL = "Mistral-Small-3.1-24B-Instruct-2503"
_TEXT = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 24,
}  # fmt: skip
_TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16}


def write_specials_first(files: Mapping[str, Any], path: Path) -> None:
    """tokenizer.json, and every published JSON file at tiny width. Ids of special tokens are the published ones."""
    tokenizer = _tokenizer(files["tokenizer_config.json"]["added_tokens_decoder"])
    tokenizer.save(str(path / "tokenizer.json"))
    for name, content in files.items():
        tiny = dict(content)
        if name == "config.json":
            tiny["text_config"] = {**content["text_config"], **_TEXT, "vocab_size": tokenizer.get_vocab_size()}
            tiny["vision_config"] = {**content["vision_config"], **_TOWER}
        if name == "chat_template.json":
            tiny["chat_template"] = TEMPLATES[content["chat_template"]]
        (path / name).write_text(json.dumps(tiny, indent=2), encoding="utf-8")


def _tokenizer(added: Mapping[str, Mapping[str, Any]]) -> Tokenizer:
    """The published special tokens in their order, and behind them 400 byte-level entries."""
    texts = [added[str(number)]["content"] for number in range(len(added))]
    written = json.loads(trained_tokenizer(400).to_str())
    ordinary = written["model"]["vocab"]
    written["model"]["vocab"] = {text: i for i, text in enumerate(texts)} | {
        text: len(texts) + number for text, number in ordinary.items()
    }
    written["normalizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(written))
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in texts])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", texts.index("<s>"))]
    )
    return tokenizer
