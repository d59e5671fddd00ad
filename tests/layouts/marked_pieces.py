"""What a directory with scored pieces (Fuyu's) holds at tiny width: other ids than those of the byte-level ones."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.tiny.fuyu import write_marked_pieces

MODEL = "fuyu-8b"
_SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
_MARKS = {71011: "|SPEAKER|", 71013: "|ENDOFTEXT|", 71019: "|NEWLINE|"}


def write_pieces_published(files: Mapping[str, Any], path: Path) -> None:
    """tokenizer.json, and every published JSON file with the tiny vocabulary's ids and tiny sizes.

    config.json names the pad: without that key its class means an id that no tiny vocabulary has.
    """
    tokenizer = write_marked_pieces(path)
    ids = {number: tokenizer.token_to_id(mark) for number, mark in _MARKS.items()}
    for name, content in files.items():
        tiny = {key: ids.get(value, value) if isinstance(value, int) else value for key, value in content.items()}
        if name == "config.json":
            tiny |= _SIZES | {"vocab_size": tokenizer.get_vocab_size() + 3, "image_token_id": ids[71011]}
        (path / name).write_text(json.dumps(tiny, indent=2), encoding="utf-8")
