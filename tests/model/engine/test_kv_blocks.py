"""Blocks are handed out once, come back once, and the books say so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.engine.kv_blocks import BlockAllocator, BlockError, OutOfBlocks


def test_a_table_covers_its_tokens() -> None:
    blocks = BlockAllocator(8, 4)
    table = blocks.allocate(9)
    assert len(table) == 3 and blocks.n_used == 3
    blocks.append(table, 12)
    assert len(table) == 3  # the third block had room
    blocks.append(table, 13)
    assert len(table) == 4
    blocks.check_integrity([table])


def test_a_failed_allocation_takes_nothing() -> None:
    blocks = BlockAllocator(3, 4)
    table = blocks.allocate(8)
    before = list(table)
    with pytest.raises(OutOfBlocks):
        blocks.append(table, 17)
    assert table == before and blocks.n_free == 1
    blocks.check_integrity([table])


def test_a_double_free_is_refused() -> None:
    blocks = BlockAllocator(3, 4)
    table = blocks.allocate(8)
    copy = list(table)
    blocks.free(table)
    assert table == [] and blocks.n_free == 3
    with pytest.raises(BlockError):
        blocks.free(copy)


def test_integrity_sees_a_planted_leak() -> None:
    blocks = BlockAllocator(4, 4)
    table = blocks.allocate(8)
    with pytest.raises(BlockError):
        blocks.check_integrity([])
    with pytest.raises(BlockError):
        blocks.check_integrity([table, table])
    blocks.check_integrity([table])


def test_integrity_sees_a_block_that_is_free_and_in_a_table() -> None:
    blocks = BlockAllocator(4, 4)
    table = blocks.allocate(8)
    stale = list(table)
    blocks.free(table)
    with pytest.raises(BlockError):
        blocks.check_integrity([stale])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40)), max_size=60))
def test_any_sequence_of_calls_keeps_the_books(calls: list[tuple[int, int]]) -> None:
    blocks = BlockAllocator(12, 4)
    tables: list[list[int]] = [[] for _ in range(5)]
    for which, n_tokens in calls:
        table = tables[which]
        if n_tokens == 0:
            blocks.free(table)
        else:
            fits = blocks.blocks_for(n_tokens) - len(table) <= blocks.n_free
            try:
                blocks.append(table, n_tokens)
            except OutOfBlocks:
                assert not fits
            else:
                assert fits and len(table) >= blocks.blocks_for(n_tokens)
        blocks.check_integrity(tables)
        held = [block for table in tables for block in table]
        assert len(held) == len(set(held)) == blocks.n_used


def test_a_shared_block_is_free_when_its_last_table_lets_go() -> None:
    blocks = BlockAllocator(6, 4)
    first = blocks.allocate(10)
    second = blocks.allocate(10, first[:2])
    assert second[:2] == first[:2] and second[2] != first[2] and blocks.n_used == 4
    blocks.check_integrity([first, second])
    common = first[:2]
    blocks.free(first)
    assert blocks.n_used == 3 and second[:2] == common
    blocks.check_integrity([second])
    blocks.free(second)
    assert blocks.n_used == 0


def test_sharing_that_fails_counts_nothing() -> None:
    blocks = BlockAllocator(3, 4)
    first = blocks.allocate(8)
    with pytest.raises(OutOfBlocks):
        blocks.allocate(16, first)
    blocks.check_integrity([first])


def test_a_shared_block_that_is_counted_wrongly_is_seen() -> None:
    blocks = BlockAllocator(4, 4)
    first = blocks.allocate(8)
    second = blocks.allocate(8, first[:1])
    with pytest.raises(BlockError):
        blocks.check_integrity([first])
    with pytest.raises(BlockError):
        blocks.check_integrity([first, second, first[:1]])
    blocks.check_integrity([first, second])
