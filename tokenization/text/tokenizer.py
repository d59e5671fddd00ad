"""What a tokenizer can be asked, whatever file it was made from, and the special tokens that have names."""

from collections.abc import Mapping
from typing import Protocol

from configs.checkpoint import ConfigSection

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer(Protocol):
    """Text <-> ids; made once per process. Special tokens have no way in through text."""

    special: Mapping[str, int]  # text and id of every special token
    opening: tuple[int, ...]  # ids that this checkpoint puts in front of every prompt, such as that of `<s>`
    leading_blanks: int  # so many blanks at the start of a text are no part of it, but of how its first word is written
    vocab_size: int  # ids in use; the model may have more rows
    longest_token: int  # bytes of the longest token

    def encode(self, text: str) -> list[int]:
        """Never a special id, whatever the text holds. Raises ChatError for text that has no ordinary ids."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes this id stands for; a special token's are its text, b"" where the vocabulary has no entry."""

    def entry(self, token_id: int) -> str:
        """As the vocabulary spells it: `Ġis`, or `▁is`, for a word behind a blank; "" where it has no entry."""

    def is_special(self, token_id: int) -> bool:
        """Whether this id is no part of an answer's text."""


def most_characters(tokenizer: Tokenizer, max_model_len: int) -> int:
    """Of a text that may fit: no token stands for more than its bytes, and composing (NFC) may make one out of four."""
    return 4 * tokenizer.longest_token * max_model_len


def named_tokens(config: ConfigSection) -> dict[str, str]:
    """Those that tokenizer_config.json names, text by part: `{"eos_token": "<|im_end|>"}`.

    What is null or missing has no entry.
    """
    found: dict[str, str] = {}
    for name in NAMES:
        value = config.read(object, name, None)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
    return found
