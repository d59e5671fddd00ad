"""Model directories of the hub at tiny width: as they are published, and as releases of transformers save them again.

published/ holds what each file holds on the hub and where that was seen. resaved/ holds what resave.py made of the
directories written here. docs/models.md lists them and says how they are made.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer

from tests.layouts import marked_pieces, specials_first
from tests.layouts.templates import TEMPLATES
from tests.layouts.tiny_width import (
    N_ORDINARY,
    first_added,
    tiny_added_tokens,
    tiny_config,
    tiny_id,
    with_tiny_ids,
)
from tests.layouts.weights import hub_tensors, write_shards
from tests.tiny.qwen2_vl import trained_tokenizer
from tests.tiny.sentencepiece import CONTROL, trained_pieces

HERE = Path(__file__).parent
PUBLISHED, RESAVED = HERE / "published", HERE / "resaved"
HUB = "hub"
MOST_SHARDS = 3  # of tiny weights; the hub has up to 38


@dataclass(frozen=True, slots=True)
class Layout:
    """One directory: a model, and who wrote its files."""

    model: str  # its name on the hub, without the organisation
    saved_by: str  # HUB, or the release of transformers

    def __str__(self) -> str:
        return f"{self.model}-{self.saved_by}"


def layouts() -> list[Layout]:
    """All that can be written."""
    published = [Layout(path.stem, HUB) for path in sorted(PUBLISHED.glob("*.json"))]
    resaved = [Layout(path.stem, path.parent.name) for path in sorted(RESAVED.glob("*/*.json"))]
    return [found for found in published if not found.model.startswith("Qwen-VL")] + resaved


def facts_of(model: str) -> dict[str, Any]:
    """What is published of a model: `files`, `weights`, and in `seen` where each file was seen."""
    found: dict[str, Any] = json.loads((PUBLISHED / f"{model}.json").read_text(encoding="utf-8"))
    return found


def write_layout(layout: Layout, path: Path, *, weights: bool = True) -> Path:
    """A complete directory, with random weights that are the same for all layouts of one model.

    weights: False leaves them out, for whoever reads the other files alone.
    """
    write_published(layout.model, path, weights=weights and layout.saved_by == HUB)
    if layout.saved_by == HUB:
        return path
    saved = json.loads((RESAVED / layout.saved_by / f"{layout.model}.json").read_text(encoding="utf-8"))
    tensors = hub_tensors(path) if weights else {}
    for file in path.iterdir():
        if file.name != "tokenizer.json":
            file.unlink()
    for name, content in saved["files"].items():
        _write(path / name, content)
    if weights:
        write_shards(path, {name: tensors[name] for name in saved["tensors"]}, 1)
    return path


def write_published(model: str, path: Path, *, weights: bool = True) -> Path:
    """The directory as it lies on the hub. weights: False leaves them out."""
    facts = facts_of(model)
    path.mkdir(parents=True, exist_ok=True)
    if model == marked_pieces.MODEL:
        marked_pieces.write_pieces_published(facts["files"], path)
    elif model == specials_first.MODEL:
        specials_first.write_specials_first(facts["files"], path)
    else:
        _write_files(facts["files"], path)
    if weights:
        shards = MOST_SHARDS if model == specials_first.MODEL else min(facts["weights"]["shards"], MOST_SHARDS)
        write_shards(path, hub_tensors(path), shards)
    if "Omni" in model:
        torch.save({}, path / "spk_dict.pt")  # the voices of what speaks; some releases do not load without the file
    return path


def _write_files(files: Mapping[str, Any], path: Path) -> None:
    """Of most models: a byte-level vocabulary or one of pieces, the added tokens behind it, and the other files."""
    config = files["tokenizer_config.json"]
    added = config["added_tokens_decoder"]
    pieces = config["tokenizer_class"] == "LlamaTokenizer"
    tokenizer = tiny_tokenizer(added, pieces=pieces)
    tokenizer.save(str(path / "tokenizer.json"))
    if not pieces:
        tokenizer.model.save(str(path))  # vocab.json and merges.txt
    for name, content in files.items():
        _write(path / name, _tiny(name, content, first_added(added)))


def tiny_tokenizer(added: Mapping[str, Mapping[str, Any]], *, pieces: bool) -> Tokenizer:
    """N_ORDINARY entries, byte-level or pieces, and behind them the published added tokens in their order."""
    tokenizer = Tokenizer.from_str(_trained(pieces=pieces))
    first, at = first_added(added), N_ORDINARY
    for number, token in sorted(added.items(), key=lambda item: int(item[0])):
        if int(number) < first:
            continue  # the beginning of a vocabulary of pieces
        if tiny_id(int(number), first) != at:
            raise ValueError(f"token {number} does not follow the one before it: an added token was left out")
        flags = {key: token[key] for key in ("lstrip", "rstrip", "normalized", "single_word", "special")}
        tokenizer.add_tokens([AddedToken(token["content"], **flags)])
        at += 1
    return tokenizer


@lru_cache(2)
def _trained(*, pieces: bool) -> str:
    tokenizer = trained_pieces(n_pieces=N_ORDINARY - 256 - len(CONTROL)) if pieces else trained_tokenizer(N_ORDINARY)
    if tokenizer.get_vocab_size() != N_ORDINARY:
        raise RuntimeError(f"the tiny vocabulary has {tokenizer.get_vocab_size()} entries")
    return tokenizer.to_str()


def _tiny(name: str, content: Any, first: int) -> Any:
    if name == "config.json":
        return tiny_config(content, first)
    if name == "added_tokens.json":
        return tiny_added_tokens(content, first)
    if name == "tokenizer_config.json":
        content = {**content, "added_tokens_decoder": tiny_added_tokens(content["added_tokens_decoder"], first)}
    if isinstance(content, dict) and "chat_template" in content:
        content = {**content, "chat_template": TEMPLATES[content["chat_template"]]}
    return TEMPLATES[content] if isinstance(content, str) else with_tiny_ids(content, first)


def _write(path: Path, content: Any) -> None:
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=2), encoding="utf-8")


if __name__ == "__main__":  # what resave.py takes: every published directory, under the path that is given
    for layout in layouts():
        if layout.saved_by == HUB:
            write_published(layout.model, Path(sys.argv[1]) / layout.model)
