"""The blocks of the paged KV cache: how many there are, which are free, and how many tables hold the others."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class OutOfBlocks(Exception):
    """More blocks were asked for than are free; nothing was allocated."""


class BlockError(Exception):
    """Blocks, queues or budgets do not add up. Always a bug, never a client's doing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    n_blocks: int  # with the reserved ones
    block_size: int  # tokens
    nbytes: int
    max_model_len: int  # tokens of one sequence: what was asked for, at most what the cache holds
    bound: str = "--kv-cache-mib"  # the setting that decided, as the table at start shows it
    reserved: int = 0  # blocks at the end that no sequence gets: the padding of graphs is written there

    @property
    def usable(self) -> int:
        """Blocks for sequences."""
        return self.n_blocks - self.reserved


class BlockAllocator:
    """`n_blocks` blocks of `block_size` tokens; a block is free or stands in as many tables as its count says."""

    def __init__(self, n_blocks: int, block_size: int) -> None:
        self.n_blocks = n_blocks
        self.block_size = block_size
        self._free = list(range(n_blocks - 1, -1, -1))  # a stack: what was freed last is warm and is used first
        self._counts = [0] * n_blocks  # tables that hold each block

    @property
    def n_free(self) -> int:
        return len(self._free)

    @property
    def n_used(self) -> int:
        return self.n_blocks - len(self._free)

    def blocks_for(self, n_tokens: int) -> int:
        return -(-n_tokens // self.block_size)

    def allocate(self, n_tokens: int, shared: Sequence[int] = ()) -> list[int]:
        """A new block table for `n_tokens` tokens that begins with the `shared` blocks. Raises OutOfBlocks."""
        table = list(shared)
        self.append(table, n_tokens)
        for block in shared:
            self._counts[block] += 1
        return table

    def append(self, table: list[int], n_tokens: int) -> None:
        """Lengthen `table` until it covers `n_tokens` tokens. Raises OutOfBlocks and leaves `table` unchanged."""
        missing = self.blocks_for(n_tokens) - len(table)
        if missing > len(self._free):
            raise OutOfBlocks(f"{missing} blocks are needed, {len(self._free)} are free")
        for _ in range(missing):
            block = self._free.pop()
            self._counts[block] = 1
            table.append(block)

    def free(self, table: list[int]) -> None:
        """Empty `table`; blocks in no other table become free. Raises BlockError for a block that no table holds."""
        for block in reversed(table):
            if self._counts[block] < 1:
                raise BlockError(f"block {block} is freed but was not taken")
            self._counts[block] -= 1
            if self._counts[block] == 0:
                self._free.append(block)
        table.clear()

    def held_only_by(self, tables: Iterable[Sequence[int]]) -> int:
        """How many blocks would become free without these tables."""
        held = Counter(block for table in tables for block in table)
        return sum(self._counts[block] == n for block, n in held.items())

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise BlockError unless every block is free once, or stands in as many of `tables` as are counted."""
        held = [0] * self.n_blocks
        for table in tables:
            for block in table:
                held[block] += 1
        if held != self._counts:
            wrong = [block for block in range(self.n_blocks) if held[block] != self._counts[block]]
            raise BlockError(f"blocks in {[held[b] for b in wrong[:8]]} tables are counted otherwise: {wrong[:8]}")
        free = [0] * self.n_blocks
        for block in self._free:
            free[block] += 1
        wrong = [block for block in range(self.n_blocks) if free[block] != (held[block] == 0)]
        if wrong:
            raise BlockError(f"blocks that are free and held, free twice, or neither: {wrong[:8]}")
