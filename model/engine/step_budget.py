"""What one step may still take: tokens, and embeddings that encoders make; and what it gave to which sequence."""

from collections.abc import Sequence
from typing import NamedTuple

from configs.serve import EngineConfig
from model.engine.encoder_cache import EncoderCache
from model.engine.sequence import EncoderInput
from model.engine.sequence import Sequence as Answer


def max_encoder_tokens(config: EngineConfig) -> int:
    """Embeddings that one step makes, unless one medium alone has more."""
    return config.max_encoder_tokens or max(config.max_batched_tokens // 2, 1)


class StepPart(NamedTuple):
    """One sequence up to a token, and the media that are encoded for it."""

    sequence: Answer
    stop: int
    encodes: Sequence[EncoderInput]


class StepBudget:
    """It is dealt out in the order in which it is asked for."""

    def __init__(self, tokens: int, embeddings: int, cache: EncoderCache) -> None:
        self.tokens = tokens
        self.parts: list[StepPart] = []
        self._embeddings = embeddings
        self._cache = cache
        self._encodes = False  # some medium is encoded

    def reach(self, sequence: Answer, start: int) -> tuple[int, list[EncoderInput]]:
        """How far `sequence` comes from `start` with what is left, and the media that are encoded for that.

        It stops before a medium that finds no room; the first one of a step always does, however large it is.
        """
        stop = min(sequence.n_tokens, start + self.tokens)
        encodes: list[EncoderInput] = []
        if not sequence.media or start >= sequence.n_prompt:
            return stop, encodes
        left = self._embeddings
        for item in self._cache.missing(sequence.media):
            if item.first >= stop:
                break
            if item.n_tokens > left and (self._encodes or encodes):
                return item.first, encodes
            left -= item.n_tokens
            encodes.append(item)
        return stop, encodes

    def give(self, sequence: Answer, stop: int, encodes: Sequence[EncoderInput] = ()) -> None:
        """What `reach` found; where that is nothing, the sequence has no part of the step."""
        if stop > sequence.n_computed:
            self.tokens -= stop - sequence.n_computed
            self.parts.append(StepPart(sequence, stop, encodes))
        if encodes:
            self._embeddings -= sum(item.n_tokens for item in encodes)
            self._encodes = True
