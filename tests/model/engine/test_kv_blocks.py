"""Blocks are handed out once, come back once, and the books say so; whole ones stay as long as nothing needs them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.engine.kv_blocks import BlockAllocator, BlockError, BlockKey, OutOfBlocks


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


def chain(*names: str, outlives: bool = True) -> list[BlockKey]:
    """Of a table whose blocks hold these, each behind the ones before it."""
    return [BlockKey("/".join(names[: i + 1]).encode(), outlives) for i in range(len(names))]


def filled(blocks: BlockAllocator, keys: list[BlockKey], shared: int = 0) -> list[int]:
    """A table that takes over so many blocks and has the others filled."""
    table = blocks.allocate(len(keys) * blocks.block_size, blocks.find(keys[:shared]))
    for block, key in zip(table[shared:], keys[shared:], strict=True):
        blocks.keep(block, key)
    return table


def test_blocks_stay_until_they_are_needed_the_end_of_a_chain_first() -> None:
    blocks = BlockAllocator(4, 4)
    keys = chain("a", "b", "c")
    table = filled(blocks, keys)
    held = [*table]
    blocks.free(table)
    assert blocks.n_free == 4 and blocks.n_used == 0 and blocks.find(keys) == held
    other = blocks.allocate(8)
    assert blocks.find(keys) == held[:2], "the blank one went first, then the end of the chain"
    again = blocks.allocate(8, blocks.find(keys))
    assert again == held[:2] and blocks.n_free == 0
    blocks.check_integrity([other, again])


def test_whoever_was_used_last_stays_longest() -> None:
    blocks = BlockAllocator(4, 4)
    for names in (("a", "b"), ("c", "d")):
        blocks.free(filled(blocks, chain(*names)))
    blocks.free(filled(blocks, chain("a", "b"), shared=2))
    table = blocks.allocate(8)
    assert blocks.find(chain("c")) == [] and len(blocks.find(chain("a", "b"))) == 2
    blocks.check_integrity([table])


def test_taking_over_what_is_free_needs_a_free_block() -> None:
    """A block that stays counts as free, and is none for those who take it over."""
    blocks = BlockAllocator(3, 4)
    keys = chain("a", "b")
    blocks.free(filled(blocks, keys))
    assert blocks.n_held(blocks.find(keys)) == 0
    with pytest.raises(OutOfBlocks):
        blocks.allocate(16, blocks.find(keys))
    blocks.check_integrity([])
    table = blocks.allocate(12, blocks.find(keys))
    assert blocks.n_held(table) == 3 and blocks.n_free == 0
    blocks.check_integrity([table])


def test_what_does_not_outlive_its_tables_is_found_as_long_as_they_last() -> None:
    blocks = BlockAllocator(4, 4)
    keys = chain("a", "b", outlives=False)
    first = filled(blocks, keys)
    second = blocks.allocate(8, blocks.find(keys))
    blocks.free(first)
    assert blocks.find(keys) == second
    blocks.free(second)
    assert blocks.find(keys) == []
    blocks.check_integrity([])


def test_of_two_blocks_that_hold_the_same_one_stays() -> None:
    blocks = BlockAllocator(4, 4)
    keys = chain("a", "b")
    first, second = filled(blocks, keys), filled(blocks, keys)
    assert blocks.find(keys) == first
    kept = [*first]
    for table in (first, second):
        blocks.free(table)
    assert blocks.find(keys) == kept
    blocks.check_integrity([])
    assert len(blocks.allocate(8)) == 2 and blocks.find(keys) == kept, "the other two were blank"


def test_the_second_block_takes_the_place_of_one_that_is_gone() -> None:
    blocks = BlockAllocator(4, 4)
    first, second = filled(blocks, chain("a")), filled(blocks, chain("a", "b"))
    held = [*second]
    blocks.free(first)
    other = blocks.allocate(8)
    assert blocks.find(chain("a", "b")) == [], "whoever looks now has to compute it"
    blocks.free(second)
    assert blocks.find(chain("a", "b")) == held
    blocks.check_integrity([other])


def test_what_is_forgotten_is_found_by_nobody() -> None:
    blocks = BlockAllocator(4, 4)
    keys = chain("a", "b")
    table = filled(blocks, keys)
    blocks.forget(table)
    assert blocks.find(keys) == []
    blocks.free(table)
    blocks.check_integrity([])
    assert blocks.find(keys) == []


def test_integrity_sees_a_key_that_leads_elsewhere() -> None:
    blocks = BlockAllocator(4, 4)
    table = filled(blocks, chain("a", "b"))
    blocks.keep(table[0], BlockKey(b"c", True))  # as if it was written again
    with pytest.raises(BlockError, match="does not hold it"):
        blocks.check_integrity([table])


NAMES = st.lists(st.sampled_from("ab"), min_size=1, max_size=5)
CALLS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(["allocate", "compute", "append", "free"]), NAMES), max_size=60
)


@settings(max_examples=200)
@given(calls=CALLS, n_blocks=st.integers(5, 14), outlives=st.booleans())
def test_a_block_with_a_key_never_changes_and_leaves_go_first(
    calls: list[tuple[int, str, list[str]]], n_blocks: int, outlives: bool
) -> None:
    """Whoever takes over, fills and lets go. written: what stands in each block; since: when each key became free."""
    blocks = BlockAllocator(n_blocks, 4)
    tables: list[list[int]] = [[] for _ in range(5)]
    chains: list[list[BlockKey]] = [[] for _ in range(5)]
    written: dict[int, bytes] = {}
    since: dict[BlockKey, tuple[int, int]] = {}

    def held() -> list[int]:
        return [block for table in tables for block in table]

    def free() -> set[BlockKey]:
        return {key for key in since if (found := blocks.find([key])) and found[0] not in held()}

    for at, (which, call, names) in enumerate(calls):
        table, keys, before = tables[which], chain(*names, outlives=outlives), free()
        if call == "free":
            since |= {key: (at, -i) for i, key in enumerate(chains[which][: len(table)])}  # a table's end goes first
            blocks.free(table)
        elif call in ("allocate", "compute") and not table:
            shared = blocks.find(keys) if call == "allocate" else []  # another one computes the same at the same time
            assert [written[block] for block in shared] == [key.digest for key in keys[: len(shared)]]
            assert blocks.n_held(shared) == len({*shared} & {*held()})
            if len(keys) - blocks.n_held(shared) > blocks.n_free:
                continue
            others = held()
            tables[which], chains[which] = blocks.allocate(len(keys) * 4, shared), keys
            assert tables[which][: len(shared)] == shared and not {*tables[which][len(shared) :]} & {*others, *shared}
            for block, key in zip(tables[which][len(shared) :], keys[len(shared) :], strict=True):
                written[block] = key.digest
                blocks.keep(block, key)
        elif call == "append" and table and blocks.n_free:
            keys = chain(*[key.digest[-1:].decode() for key in chains[which]], names[0], outlives=outlives)
            others = held()
            blocks.append(table, len(keys) * 4)
            assert table[-1] not in others
            written[table[-1]], chains[which] = keys[-1].digest, keys
            blocks.keep(table[-1], keys[-1])
        blocks.check_integrity(tables)
        assert all(written[block] == key.digest for key in since for block in blocks.find([key]))
        after = free()
        gone = {key for key in before - after if not blocks.find([key])}  # the others were taken over
        assert all(since[key] < since[other] for key in gone for other in before & after), "longest free goes first"
        for key in after:
            assert key.outlives
            if b"/" in key.digest:
                parent = BlockKey(key.digest.rpartition(b"/")[0], outlives)
                assert blocks.find([parent]) and (parent not in after or since[parent] > since[key])
