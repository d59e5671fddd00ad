"""What everybody may ask of a vocabulary, whatever file it came from."""

from collections.abc import Mapping
from typing import Protocol


class Tokenizer(Protocol):
    """Text <-> ids; made once per process. Special tokens have no way in through text."""

    @property
    def special(self) -> Mapping[str, int]:
        """Text and id of every special token."""

    @property
    def opening(self) -> tuple[int, ...]:
        """Ids that this checkpoint puts in front of every prompt, such as that of `<s>`."""

    @property
    def leading_blanks(self) -> int:
        """So many blanks at the start of a text are no part of it, but of how its first word is written."""

    @property
    def vocab_size(self) -> int:
        """Ids in use; the model may have more rows."""

    @property
    def longest_token(self) -> int:
        """Bytes of the longest token."""

    def encode(self, text: str) -> list[int]:
        """Never a special id, whatever the text holds. Raises ChatError for text that has no ordinary ids."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes this id stands for; a special token's are its text, b"" where the vocabulary has no entry."""

    def is_special(self, token_id: int) -> bool:
        """Whether this id is no part of an answer's text."""
