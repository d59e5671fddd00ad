"""How the entries of a tokenizer.json spell bytes."""

import re
from typing import Any

from tokenizers import Tokenizer


def is_byte_level(decoder: Any) -> bool:
    if isinstance(decoder, dict) and decoder.get("type") == "Sequence":
        return any(is_byte_level(part) for part in decoder.get("decoders", []))
    return isinstance(decoder, dict) and decoder.get("type") == "ByteLevel"


def byte_table(tokenizer: Tokenizer) -> list[bytes]:
    """Bytes of every id. A byte-level vocabulary writes each byte as one printable character."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    written = {byte: byte for byte in printable} | {256 + i: byte for i, byte in enumerate(hidden)}
    added = tokenizer.get_added_tokens_decoder()
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    spelled = re.compile(f"[{re.escape(''.join(map(chr, written)))}]+")
    table = [b""] * (1 + max([*vocabulary.values(), *added]))
    for token, token_id in vocabulary.items():
        if not token.isascii() and spelled.fullmatch(token):
            table[token_id] = token.translate(written).encode("latin-1")
        else:  # ASCII spells itself, and what has no byte-level spelling is taken as it stands
            table[token_id] = token.encode("utf-8")
    for token_id, entry in added.items():
        table[token_id] = entry.content.encode("utf-8")
    return table
