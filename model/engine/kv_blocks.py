"""The blocks of the paged KV cache: which are free, how many tables hold the others, and what whole ones hold."""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


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


class BlockKey(NamedTuple):
    """What a whole block holds: the same digest, the same keys and values."""

    digest: bytes
    outlives: bool  # the block stays when no table holds it


class BlockAllocator:
    """`n_blocks` blocks of `block_size` tokens; a block is free or stands in as many tables as its count says.

    A whole block may have a key that says what it holds. Free ones keep theirs until they are needed for something
    else, those first that were free for longest, and of a chain its end before its beginning: a table frees its end
    first. A block with a key is never written again.
    """

    def __init__(self, n_blocks: int, block_size: int) -> None:
        self.n_blocks = n_blocks
        self.block_size = block_size
        self._blank = list(range(n_blocks - 1, -1, -1))  # free without a key; what was freed last is used first
        self._kept: OrderedDict[int, None] = OrderedDict()  # free with a key, oldest first
        self._counts = [0] * n_blocks  # tables that hold each block
        self._keys: list[BlockKey | None] = [None] * n_blocks  # what each block holds
        self._found: dict[bytes, int] = {}  # the block of each key; others may hold the same

    @property
    def n_free(self) -> int:
        return len(self._blank) + len(self._kept)

    @property
    def n_used(self) -> int:
        """That tables hold."""
        return self.n_blocks - self.n_free

    def blocks_for(self, n_tokens: int) -> int:
        return -(-n_tokens // self.block_size)

    def find(self, keys: Iterable[BlockKey]) -> list[int]:
        """The blocks that hold the beginning of a chain, as far as there are any."""
        blocks = []
        for key in keys:
            block = self._found.get(key.digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def n_held(self, blocks: Iterable[int]) -> int:
        """Those of them that some table holds: who takes them over, too, needs no free block for them."""
        return sum(self._counts[block] > 0 for block in blocks)

    def allocate(self, n_tokens: int, shared: Sequence[int] = ()) -> list[int]:
        """A new block table for `n_tokens` tokens that begins with the `shared` blocks. Raises OutOfBlocks."""
        missing = self.blocks_for(n_tokens) - self.n_held(shared)
        self._check_free(missing)
        for block in shared:
            if not self._counts[block]:
                del self._kept[block]
            self._counts[block] += 1
        table = list(shared)
        self.append(table, n_tokens)
        return table

    def append(self, table: list[int], n_tokens: int) -> None:
        """Lengthen `table` until it covers `n_tokens` tokens. Raises OutOfBlocks and leaves `table` unchanged."""
        missing = self.blocks_for(n_tokens) - len(table)
        self._check_free(missing)
        for _ in range(missing):
            block = self._blank.pop() if self._blank else self._evict()
            self._counts[block] = 1
            table.append(block)

    def keep(self, block: int, key: BlockKey) -> None:
        """A held block is whole and will not be written again: this is what it holds."""
        self._keys[block] = key
        self._found.setdefault(key.digest, block)

    def free(self, table: list[int]) -> None:
        """Empty `table`; blocks in no other table become free. Raises BlockError for a block that no table holds."""
        for block in reversed(table):
            if self._counts[block] < 1:
                raise BlockError(f"block {block} is freed but was not taken")
            self._counts[block] -= 1
            key = self._keys[block]
            if key is not None and key.outlives:
                known = self._found.setdefault(key.digest, block)
                if known in self._kept:
                    self._kept.move_to_end(known)  # it stays for as long as what stands behind it
            if self._counts[block] == 0:
                self._let_go(block)
        table.clear()

    def forget(self, table: Iterable[int]) -> None:
        """Nobody takes these blocks over any more."""
        for block in table:
            self._drop_key(block)

    def held_only_by(self, tables: Iterable[Sequence[int]], but: Collection[int] = ()) -> int:
        """How many blocks would become free without these tables, leaving out some."""
        held = Counter(block for table in tables for block in table)
        return sum(self._counts[block] == n for block, n in held.items() if block not in but)

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise BlockError unless every block is free once, or stands in as many of `tables` as are counted."""
        held = [0] * self.n_blocks
        for table in tables:
            for block in table:
                held[block] += 1
        if held != self._counts:
            wrong = [block for block in range(self.n_blocks) if held[block] != self._counts[block]]
            raise BlockError(f"blocks in {[held[b] for b in wrong[:8]]} tables are counted otherwise: {wrong[:8]}")
        free = Counter([*self._blank, *self._kept])
        wrong = [block for block in range(self.n_blocks) if free[block] != (held[block] == 0)]
        if wrong:
            raise BlockError(f"blocks that are free and held, free twice, or neither: {wrong[:8]}")
        found = {block: key for block, key in enumerate(self._keys) if key is not None}
        if any(found.pop(block, None) is None for block in self._kept) or found.keys() & set(self._blank):
            raise BlockError("free blocks do not have keys as they should")
        if any((key := self._keys[block]) is None or key.digest != name for name, block in self._found.items()):
            raise BlockError("a key leads to a block that does not hold it")

    def _check_free(self, missing: int) -> None:
        if missing > self.n_free:
            raise OutOfBlocks(f"{missing} blocks are needed, {self.n_free} are free")

    def _evict(self) -> int:
        """The free block whose key goes first, without it."""
        block, _ = self._kept.popitem(last=False)
        self._drop_key(block)
        return block

    def _let_go(self, block: int) -> None:
        """No table holds it any more."""
        key = self._keys[block]
        if key is not None and key.outlives and self._found[key.digest] == block:
            self._kept[block] = None
        else:
            self._drop_key(block)
            self._blank.append(block)

    def _drop_key(self, block: int) -> None:
        key, self._keys[block] = self._keys[block], None
        if key is not None and self._found.get(key.digest) == block:
            del self._found[key.digest]
