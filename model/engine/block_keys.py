"""Keys of whole blocks of the KV cache, by content: a chain of digests over all that their tokens are computed from."""

import hashlib
import struct
from collections.abc import Sequence

import numpy as np

from model.engine.kv_blocks import BlockAllocator, BlockKey
from model.engine.sequence import EncoderInput, Key
from model.engine.sequence import Sequence as Answer

_DIGEST = hashlib.sha256  # clients choose what goes in, so no two contents may be found that have the same one


def chain_root(salt: bytes, variant: int) -> bytes:
    """What a chain begins with. variant: of the prompt, as the model's rope tells it."""
    return _DIGEST(struct.pack("<q", variant) + salt).digest()


class BlockKeys:
    """The keys of one sequence's blocks, made once each, when their tokens are known.

    A key is the digest of the one before it and of the block's ids, its tokens' positions, and of each medium whose
    pads lie in it the medium's key, where, and which rows of its embeddings they are. What the family adds for a whole
    prompt, and whose cache it is, is in the root. A medium without a key stands for itself alone: from there on blocks
    are shared by the answers to this prompt, and go with them.
    """

    def __init__(self, answer: Answer, block_size: int, *, outlive: bool) -> None:
        """outlive: blocks stay when the request has ended; else the answers to one prompt share those of it."""
        self._answer = answer
        self._items = answer.media  # as they came: how their embeddings are stored makes no block another one
        self._size = block_size
        # What goes with its request is found by nobody else: they may begin alike, and this one's may give way to them.
        self._root = answer.root if outlive else _DIGEST(answer.root + answer.request_id.encode()).digest()
        unkeyed = [item.first for item in self._items if not item.content]
        self._n_public = min(unkeyed, default=answer.limit) // block_size if outlive else 0
        shared = answer.n_prompt // block_size if answer.sampling.n > 1 else 0
        self._most = max(self._n_public, shared)
        self._keys: list[BlockKey] = []

    def of_sibling(self, answer: Answer) -> "BlockKeys":
        """Of another answer to the same prompt, none of whose tokens is known yet."""
        found = BlockKeys(answer, self._size, outlive=False)
        found._root, found._n_public, found._most = self._root, self._n_public, self._most
        found._keys = [*self._keys]
        return found

    def up_to(self, n_tokens: int) -> Sequence[BlockKey]:
        """Of the blocks that so many tokens fill, as far as they can be shared."""
        last = min(n_tokens // self._size, self._most)
        if last > len(self._keys):
            self._extend(last)
        return self._keys[:last]

    def _extend(self, last: int) -> None:
        answer, size, first = self._answer, self._size, len(self._keys)
        start, stop = first * size, last * size
        numbers = np.concatenate([answer.ids[None, start:stop], answer.positions_of(start, stop)])  # [4, tokens]
        blocks = np.ascontiguousarray(numbers.reshape(4, last - first, size).swapaxes(0, 1))  # [blocks, 4, size]
        media = self._media(start, stop)
        digest = self._keys[-1].digest if self._keys else self._root
        for i in range(first, last):
            made = _DIGEST(digest)
            made.update(blocks[i - first])
            made.update(media.get(i, b""))
            digest = made.digest()
            self._keys.append(BlockKey(digest, i < self._n_public))

    def _media(self, start: int, stop: int) -> dict[int, bytes]:
        """By block: of each part of a medium in it where it is, how long, from which row on, and the medium's key."""
        found: dict[int, bytes] = {}
        for item in self._items:
            row, content = 0, _content(item)
            for first, length in item.spans:
                at, end = max(first, start), min(first + length, stop)
                while at < end:
                    block, offset = divmod(at, self._size)
                    n = min(end - at, self._size - offset)
                    part = struct.pack("<qqqq", offset, n, row + at - first, len(content)) + content
                    found[block] = found.get(block, b"") + part
                    at += n
                row += length
        return found


class PrefixCache:
    """Which blocks hold the beginning of whose tokens, and how much of the prompts was found."""

    def __init__(self, allocator: BlockAllocator, *, outlive: bool) -> None:
        """outlive: as of BlockKeys."""
        self.queries = 0  # tokens of prompts that were looked for
        self.hits = 0  # of them, those that were there
        self._allocator = allocator
        self._outlive = outlive
        self._keys: dict[Key, BlockKeys] = {}

    def add(self, answers: Sequence[Answer]) -> None:
        """All answers to one prompt, before any of them came in."""
        first = answers[0]
        keys = BlockKeys(first, self._allocator.block_size, outlive=self._outlive)
        keys.up_to(first.n_prompt)
        self._keys.update({answer.key: keys.of_sibling(answer) for answer in answers[1:]})
        self._keys[first.key] = keys

    def remove(self, answer: Answer) -> None:
        """It ended."""
        del self._keys[answer.key]

    def find(self, answer: Answer) -> list[int]:
        """Blocks that hold the beginning of its tokens already, but for the last token."""
        most = answer.n_tokens - 1
        if answer.scores_prompt and answer.n_scored < answer.n_prompt - 1:
            most = min(most, answer.n_scored)  # what it scores is computed
        return self._allocator.find(self._keys[answer.key].up_to(most))

    def count(self, answer: Answer) -> None:
        """The first of its request came in."""
        if self._outlive and not answer.scores_prompt:
            answer.n_cached = answer.n_computed
            self.queries += answer.n_prompt
            self.hits += answer.n_cached

    def keep(self, answer: Answer, start: int) -> None:
        """Blocks that were filled since it had `start` tokens can be taken over from now on."""
        size = self._allocator.block_size
        first, last = start // size, answer.n_computed // size
        if first < last:
            keys = self._keys[answer.key].up_to(answer.n_computed)[first:last]
            for block, key in zip(answer.block_table[first:last], keys, strict=False):
                self._allocator.keep(block, key)

    def forget(self, answer: Answer) -> None:
        """Nobody takes its blocks over any more, and of what it computed none is kept."""
        self._allocator.forget(answer.block_table)
        answer.n_computed = 0


def _content(item: EncoderInput) -> bytes:
    """The medium's key; of one without its own name, which no other request of the engine has."""
    return b"key" + item.content if item.content else b"own" + repr(item.key).encode()
