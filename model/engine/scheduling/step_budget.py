"""What one step may still take: tokens, embeddings that encoders make, blocks that tables name; and who got what."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from configs.serve import EngineConfig
from model.engine.encoder_cache import EncoderCache
from model.engine.sequence import EncoderInput, Key, Status
from model.engine.sequence import Sequence as Answer


def step_tokens(config: EngineConfig) -> int:
    """Of one step at most; of an accelerator where nobody said it: model.device.with_step_of chooses a CPU's."""
    return config.max_batched_tokens or 2048


def max_encoder_tokens(config: EngineConfig) -> int:
    """Embeddings that one step makes, unless one medium alone has more."""
    return config.max_encoder_tokens or max(step_tokens(config) // 2, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_seqs: int  # running sequences
    max_batched_tokens: int  # tokens computed in one step
    embedding_bytes: int  # embeddings of running and preempted sequences
    keeps_embeddings: bool = True  # by content, after their requests
    device_embedding_bytes: int = 0  # of these what a device keeps beside host memory
    max_encoder_tokens: int = sys.maxsize  # embeddings made in one step, unless one medium alone has more
    # Blocks that the sequences of a step may name together, shared ones counted for each; at least those of the cache.
    max_table_blocks: int | None = None
    prefix_cache: bool = False  # blocks stay when their request has ended


class StepBudget:
    """What is left of a step, dealt out in the order in which it is asked for.

    What encoders make is taken off the tokens of prompts, so that a step with media takes no longer than one that is
    full of text; a decode only needs its own token.
    """

    def __init__(self, limits: Limits, cache: EncoderCache, *, blocks_for: Callable[[int], int]) -> None:
        """blocks_for: blocks of so many tokens."""
        self.parts: list[tuple[Answer, int]] = []  # each sequence, and the token before which it stops
        self.encodes: list[EncoderInput] = []  # for them
        # Other answers to the prompt that a part ends, by its sequence: they draw their first tokens from its last row.
        self.followers: dict[Key, list[Answer]] = {}
        self.room = limits.max_batched_tokens  # what is left for prompts
        self._tokens = limits.max_batched_tokens  # what is left for decodes
        self._embeddings = limits.max_encoder_tokens
        self._cache = cache
        self._blocks_for = blocks_for
        self._table_blocks = sys.maxsize if limits.max_table_blocks is None else limits.max_table_blocks

    def reach(self, sequence: Answer, start: int) -> tuple[int, list[EncoderInput]]:
        """How far `sequence` comes from `start` with what is left, and the media that are encoded for that.

        It stops before a medium that finds no room. The first one of a step always does where its prompt stands before
        it, however large it is; the prompt then has one token at least. It stops, too, before one that is being encoded
        for another request, which may fail: the next step knows what came of it.
        """
        room = max(self._tokens if sequence.decodes else self.room, 0)
        stop = min(sequence.n_tokens, start + room)
        encodes: list[EncoderInput] = []
        if not sequence.media or start >= sequence.n_prompt:
            return stop, encodes
        left = self._embeddings
        for item in self._cache.missing(sequence.media):
            if item.stop <= start:
                continue  # the cache holds what was computed from it
            if item.first >= stop:
                break
            if item.stored in [one.stored for one in encodes]:
                continue
            if self._cache.makes(item.stored) or item.stored in [one.stored for one in self.encodes]:
                return item.first, encodes
            left -= item.n_tokens
            room -= item.n_tokens
            if (left < 0 or start + room <= item.first) and (start < item.first or self.encodes or encodes):
                return max(item.first, start), encodes
            stop = min(stop, start + max(room, 1))
            encodes.append(item)
        return stop, encodes

    def names(self, stop: int) -> bool:
        """Whether the step's tables may name the blocks of so many tokens more."""
        return self._blocks_for(stop) <= self._table_blocks

    def ends(self, prompt: Answer) -> bool:
        """Whether the step computes this prompt to its end."""
        return any(sequence is prompt and stop == prompt.n_tokens for sequence, stop in self.parts)

    def give(self, sequence: Answer, stop: int, encodes: Sequence[EncoderInput]) -> None:
        """What `reach` found; where that is nothing, the sequence has no part of the step."""
        if stop > sequence.n_computed:
            self._take(stop - sequence.n_computed, self._blocks_for(stop))
            self.parts.append((sequence, stop))
            n_made = sum([item.n_tokens for item in encodes])
            self.encodes += encodes
            self.room -= n_made
            self._embeddings -= n_made

    def deal(self, running: Iterable[Answer]) -> bool:
        """To what runs of one client, oldest first: its decodes, then its prompts. False: some have to wait a step.

        Each fits alone, so whoever waited longest always runs at its client's turn.
        """
        decodes: list[Answer] = []
        prompts: list[Answer] = []
        for sequence in running:
            if sequence.status is Status.RUNNING:
                (decodes if sequence.decodes else prompts).append(sequence)
        in_turn = [*decodes, *prompts]
        n_blocks = sum([len(sequence.block_table) for sequence in decodes])
        if any([sequence.n_waited for sequence in in_turn]):
            in_turn.sort(key=lambda one: -one.n_waited)
        elif len(decodes) <= self._tokens and n_blocks <= self._table_blocks:  # as nearly always: at once
            self._take(len(decodes), n_blocks)
            self.parts += [(sequence, sequence.n_tokens) for sequence in decodes]
            in_turn = prompts
        complete = True
        for sequence in in_turn:
            stop, encodes = self.reach(sequence, sequence.n_computed)
            if stop == sequence.n_computed and not sequence.decodes:
                continue  # a prompt, which has no tokens or no encoder now
            if stop == sequence.n_computed or not self.names(stop):
                sequence.n_waited += 1
                complete = False
            else:
                sequence.n_waited = 0
                self.give(sequence, stop, encodes)
        return complete

    def _take(self, n_tokens: int, n_blocks: int) -> None:
        self._tokens -= n_tokens
        self.room -= n_tokens
        self._table_blocks -= n_blocks
