"""The spellings in ids of words that an answer must not hold."""

from collections.abc import Sequence

from server.requests.refusal import invalid_request
from tokenization.text.tokenizer import Tokenizer


def spellings(words: Sequence[str], tokenizer: Tokenizer, param: str) -> tuple[tuple[int, ...], ...]:
    """Each word as it stands at the beginning of a text, and behind a blank; none twice. Raises Refusal.

    vLLM's rule, but that it leaves the second spelling out where that has another number of ids.
    """
    found: dict[tuple[int, ...], None] = {}
    for i, word in enumerate(words):
        for text in (word.lstrip(), f" {word.lstrip()}"):
            try:
                ids = tokenizer.encode(text)
            except ValueError as error:
                raise invalid_request(str(error), f"{param}[{i}]") from None
            if ids:
                found[tuple(ids)] = None
    return tuple(found)
