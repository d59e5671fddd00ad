"""How the entries of a tokenizer.json spell bytes: byte-level, or as SentencePiece's pieces and bytes."""

import json
import re
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer

from configs.checkpoint import CheckpointError, unquoted

MOST_HOLES = 1 << 20  # ids without an entry; published vocabularies have thousands
BLANK = "▁"  # how a piece writes a blank
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")  # how a byte is written for which there is no piece
_BLANKS = {"type": "Replace", "pattern": {"String": BLANK}, "content": " "}


def read_spelling(tokenizer: Tokenizer) -> tuple[list[bytes], int]:
    """The bytes of every id, and how many blanks at the start of a text belong to how its first word is written.

    Raises CheckpointError for a decoder that joins entries in another way, and for an id far beyond the entries.
    """
    steps = list(_steps(json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder else {}))
    kinds = [str(step.get("type")) for step in steps]
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    added = {entry.content: token_id for token_id, entry in tokenizer.get_added_tokens_decoder().items()}
    _check_ids(vocabulary | added)
    if "ByteLevel" in kinds:
        return _byte_level_table(vocabulary, added), 0
    no_strip: dict[str, Any] = {"content": " ", "start": 0, "stop": 0}
    strip = steps.pop() if kinds[-2:] == ["Fuse", "Strip"] else no_strip
    joined = [step for step in steps if step.get("type") not in ("ByteFallback", "Fuse")]
    if joined != [_BLANKS] or strip["content"] != " " or strip["stop"] != 0:
        raise CheckpointError(
            "tokenizer.json: only byte-level vocabularies (decoder ByteLevel) and SentencePiece's (decoder Replace, "
            f"ByteFallback, Fuse, Strip) are supported; here the decoder is {', '.join(kinds) or 'missing'}"
        )
    return _piece_table(vocabulary | added, with_bytes="ByteFallback" in kinds), strip["start"]


def _check_ids(ids: dict[str, int]) -> None:
    """Before a table is made that has a row for each id."""
    last, most = max(ids, key=ids.__getitem__), len(ids) + MOST_HOLES
    if ids[last] >= most:
        raise CheckpointError(
            f"tokenizer.json: 'vocab' or 'added_tokens' gives {unquoted(last)!r} the id {ids[last]}, "
            f"and with {len(ids)} entries ids are below {most}"
        )


def _steps(decoder: Any) -> Iterator[dict[str, Any]]:
    if isinstance(decoder, dict) and decoder.get("type") == "Sequence":
        for part in decoder.get("decoders", []):
            yield from _steps(part)
    elif isinstance(decoder, dict) and decoder:
        yield decoder


def _byte_level_table(vocabulary: dict[str, int], added: dict[str, int]) -> list[bytes]:
    """A byte-level vocabulary writes each byte as one printable character."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    written = {byte: byte for byte in printable} | {256 + i: byte for i, byte in enumerate(hidden)}
    spelled = re.compile(f"[{re.escape(''.join(map(chr, written)))}]+")
    table = [b""] * (1 + max([*vocabulary.values(), *added.values()]))
    for token, token_id in vocabulary.items():
        if not token.isascii() and spelled.fullmatch(token):
            table[token_id] = token.translate(written).encode("latin-1")
        else:  # ASCII spells itself, and what has no byte-level spelling is taken as it stands
            table[token_id] = token.encode("utf-8")
    for content, token_id in added.items():
        table[token_id] = content.encode("utf-8")
    return table


def _piece_table(vocabulary: dict[str, int], *, with_bytes: bool) -> list[bytes]:
    table = [b""] * (1 + max(vocabulary.values()))
    for piece, token_id in vocabulary.items():
        byte = _BYTE.fullmatch(piece) if with_bytes else None
        table[token_id] = bytes([int(byte[1], 16)]) if byte else piece.replace(BLANK, " ").encode("utf-8")
    return table
