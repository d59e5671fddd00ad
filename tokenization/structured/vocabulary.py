"""A tokenizer's vocabulary as llguidance takes it, and which of its ids are text. Loaded by the first grammar alone."""

from collections.abc import Sequence

import numpy as np
from llguidance import LLParserLimits, LLTokenizer, TokenizerWrapper

from tokenization.text.tokenizer import Tokenizer

# What one grammar may take: to compile it, and in each step. A lexer state is 1 to 2 KiB. What exceeds them is an error
# of its matcher, in worker and engine alike. They do not bound the time of a step: an ambiguous grammar may read the
# same few items in very many ways. That is measured (Effort).
LIMITS = LLParserLimits(
    max_grammar_size=200_000, max_lexer_states=50_000, initial_lexer_fuel=1_000_000, step_lexer_fuel=200_000,
    step_max_items=50_000, verbose_errors=False,
)  # fmt: skip
STEP_SECONDS = 0.02  # of the processor: a mask, or taking a token; honest forms need 4 ms at most, over 150,000 words
OVER_SECONDS = 0.04  # beyond those, of all steps of an answer's form together


class Effort:
    """What the steps of a form took, by processor time: on a busy machine they are no dearer."""

    def __init__(self) -> None:
        self._over = 0.0

    def add(self, seconds: float) -> None:
        self._over += max(0.0, seconds - STEP_SECONDS)

    @property
    def too_much(self) -> bool:
        return self._over > OVER_SECONDS


class GrammarVocabulary:
    """The bytes of each id. What is no text has none, so that no grammar reaches it but by its id."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """vocab_size: rows of the model's logits, at least as many as there are ids in use."""
        self.vocab_size = vocab_size
        self.end = vocab_size  # an id of nobody: in a mask its bit says that the answer may end
        self.words = -(-vocab_size // 32)  # int32, of one mask without that bit
        tokens = [
            b"" if tokenizer.is_special(i) else tokenizer.token_bytes(i)
            for i in range(min(vocab_size, tokenizer.vocab_size))
        ]
        self._text = [bool(token) for token in tokens]
        self.compiled = LLTokenizer(TokenizerWrapper(_Wrapped(tokens, vocab_size)))

    def mask(self, extra: Sequence[int] = ()) -> np.ndarray:
        """int32 [words]: a bit for each id that is text, and for each of `extra`."""
        bits = np.zeros(self.words * 32, bool)
        bits[: len(self._text)] = self._text
        bits[list(extra)] = True
        return np.packbits(bits, bitorder="little").view(np.int32)


class _Wrapped:
    """What llguidance asks of a tokenizer. It splits no text: grammars force no tokens (compile.py)."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], vocab_size: int) -> None:
        self.eos_token_id = vocab_size
        self.tokens = [*tokens, *[b""] * (vocab_size - len(tokens)), b"<end>"]
        self.special_token_ids = [vocab_size]

    def __call__(self, text: bytes) -> list[int]:
        raise RuntimeError("a grammar that forces tokens was compiled")
