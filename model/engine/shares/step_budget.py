"""What one step may compute: tokens, and blocks that its tables name. Dealt to clients at their turns."""

import sys
from collections.abc import Callable, Iterable

from model.engine.sequence import Key, Sequence, Status


class StepBudget:
    """`stops` says up to which token each sequence is computed in this step."""

    def __init__(self, blocks_for: Callable[[int], int], tokens: int, table_blocks: int | None) -> None:
        """blocks_for: blocks of so many tokens; table_blocks: that the tables may name together, None without end."""
        self._blocks_for = blocks_for
        self._tokens = tokens
        self._table_blocks = sys.maxsize if table_blocks is None else table_blocks
        self.stops: dict[Key, int] = {}

    def stop_for(self, sequence: Sequence, start: int) -> int:
        """As far as the tokens that are left go."""
        return min(sequence.n_tokens, start + self._tokens)

    def allows(self, start: int, stop: int) -> bool:
        """Whether a chunk has a token, and its table is not too long for this step."""
        return stop > start and self._blocks_for(stop) <= self._table_blocks

    def take(self, sequence: Sequence, start: int, stop: int) -> None:
        self.stops[sequence.key] = stop
        self._tokens -= stop - start
        self._table_blocks -= self._blocks_for(stop)

    def deal(self, running: Iterable[Sequence]) -> bool:
        """To what runs of one client, oldest first: decodes, then at most one prompt. False: some wait a step.

        Each fits alone, so whoever waited longest always runs at its client's turn.
        """
        complete = True
        for sequence in sorted(running, key=lambda one: -one.n_waited):
            if sequence.status is not Status.RUNNING:
                continue
            stop = self.stop_for(sequence, sequence.n_computed)
            if self.allows(sequence.n_computed, stop):
                self.take(sequence, sequence.n_computed, stop)
                sequence.n_waited = 0
            else:
                sequence.n_waited += 1
                complete = False
        return complete
