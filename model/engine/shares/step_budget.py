"""What one step may still take: tokens, embeddings that encoders make, blocks that tables name; and who got what."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from configs.serve import EngineConfig
from model.engine.encoder_cache import EncoderCache
from model.engine.sequence import EncoderInput, Status
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

    def __init__(
        self, tokens: int, embeddings: int, cache: EncoderCache, *, blocks_for: Callable[[int], int],
        table_blocks: int | None = None,
    ) -> None:  # fmt: skip
        """blocks_for: blocks of so many tokens; table_blocks: that the tables may name together, None without end."""
        self.tokens = tokens
        self.parts: list[StepPart] = []
        self._embeddings = embeddings
        self._cache = cache
        self._encodes = False  # some medium is encoded
        self._blocks_for = blocks_for
        self._table_blocks = table_blocks

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

    def names(self, stop: int) -> bool:
        """Whether the step's tables may name the blocks of so many tokens more."""
        return self._table_blocks is None or self._blocks_for(stop) <= self._table_blocks

    def give(self, sequence: Answer, stop: int, encodes: Sequence[EncoderInput] = ()) -> None:
        """What `reach` found; where that is nothing, the sequence has no part of the step."""
        if stop > sequence.n_computed:
            self.tokens -= stop - sequence.n_computed
            if self._table_blocks is not None:
                self._table_blocks -= self._blocks_for(stop)
            self.parts.append(StepPart(sequence, stop, encodes))
        if encodes:
            self._embeddings -= sum(item.n_tokens for item in encodes)
            self._encodes = True

    def deal(self, running: Iterable[Answer]) -> bool:
        """To what runs of one client, oldest first: its decodes, then its prompts. False: some have to wait a step.

        Each fits alone, so whoever waited longest always runs at its client's turn.
        """
        complete = True
        decodes: list[Answer] = []
        prompts: list[Answer] = []
        for sequence in running:
            if sequence.status is Status.RUNNING:
                (decodes if sequence.decodes else prompts).append(sequence)
        in_turn = [*decodes, *prompts]
        if any([sequence.n_waited for sequence in in_turn]):
            in_turn.sort(key=lambda one: -one.n_waited)
        for sequence in in_turn:
            stop, encodes = self.reach(sequence, sequence.n_computed)
            if stop == sequence.n_computed and len(prompts) and not sequence.decodes:
                continue  # a prompt, which has no tokens or no encoder now
            if stop == sequence.n_computed or not self.names(stop):
                sequence.n_waited += 1
                complete = False
            else:
                sequence.n_waited = 0
                self.give(sequence, stop, encodes)
        return complete
