"""What two prompts must have in common to share a block: each part of the key, with a sequence that lacks it alone."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from model.engine.block_keys import BlockKeys, chain_root
from model.engine.sequence import EncoderInput, Sequence
from tests.model.engine.bookkeeping import medium, request
from tests.tables import each_of

SIZE = 4
N = 22  # tokens: five whole blocks and a half


def picture(*spans: tuple[int, int], content: bytes = b"one", name: str = "a") -> EncoderInput:
    return msgspec.structs.replace(medium((name, 0), *spans), content=content)


def prompt(name: str = "a", *media: EncoderInput, **fields: Any) -> Sequence:
    found = request(name, N, 10, media=media)
    found.ids[:N] = np.arange(N)
    found.root = chain_root(b"", 0)
    for field, value in fields.items():
        setattr(found, field, value)
    return found


def keys(answer: Sequence, *, outlive: bool = True, n_tokens: int = N) -> list[bytes]:
    return [key.digest for key in BlockKeys(answer, SIZE, outlive=outlive).up_to(n_tokens)]


def common(first: Sequence, second: Sequence) -> int:
    """Blocks of their beginning that are the same; behind it none is."""
    one, other = keys(first), keys(second)
    assert len(one) == len(other) == 5 and len({*one}) == 5
    n = next((i for i in range(5) if one[i] != other[i]), 5)
    assert not {*one[n:]} & {*other[n:]}
    return n


def other_id(answer: Sequence) -> None:
    answer.ids[9] = 99


def other_position(answer: Sequence) -> None:
    positions = np.array(answer.positions)
    positions[1, 9] += 1
    answer.positions = positions


def other_picture(answer: Sequence) -> None:
    answer.media = (picture((9, 5), content=b"two"),)


def other_place(answer: Sequence) -> None:
    answer.media = (picture((10, 4)),)


def other_variant(answer: Sequence) -> None:
    answer.root = chain_root(b"", 1)


def other_salt(answer: Sequence) -> None:
    answer.root = chain_root(b"another client", 0)


@each_of(
    ("differs", "n"),
    [(other_id, 2), (other_position, 2), (other_picture, 2), (other_place, 2), (other_variant, 0), (other_salt, 0)],
)
def test_what_makes_a_block_another_one(differs: Callable[[Sequence], None], n: int) -> None:
    first, second = (prompt(name, picture((9, 5), name=name)) for name in "ab")
    assert common(first, second) == 5, "whoever asks"
    differs(second)
    assert common(first, second) == n


def test_rows_of_a_medium_count() -> None:
    """The same pads, and the same picture behind them, but another part of it."""
    first, second = prompt("a", picture((4, 2), (8, 2))), prompt("b", picture((8, 2), (4, 2)))
    assert common(first, second) == 1


def test_where_one_picture_ends_and_the_next_begins_counts() -> None:
    first = prompt("a", picture((4, 3)), picture((7, 5), content=b"two"))
    second = prompt("b", picture((4, 5)), picture((9, 3), content=b"two"))
    assert common(first, second) == 1


def test_a_medium_without_a_key_is_shared_with_nobody() -> None:
    first, second = (prompt(name, picture((9, 5), content=b"", name=name)) for name in "ab")
    assert len(keys(first)) == 2 and keys(first) == keys(second), "the blocks before it are"


def test_what_the_answers_to_one_prompt_share_ends_with_them() -> None:
    several = prompt("a", picture((9, 5), content=b""))
    several.sampling = msgspec.structs.replace(several.sampling, n=3)
    found = BlockKeys(several, SIZE, outlive=True)
    assert [key.outlives for key in found.up_to(N)] == [True, True, False, False, False]
    assert found.of_sibling(several.answer(1)).up_to(N) == found.up_to(N)
    assert [key.outlives for key in BlockKeys(several, SIZE, outlive=False).up_to(N)] == [False] * 5
    several.n_tokens = several.limit
    assert len(BlockKeys(several, SIZE, outlive=False).up_to(several.limit)) == 5, "what follows is their own"


def test_a_medium_that_is_encoded_for_one_request_alone_has_its_key_in_blocks() -> None:
    """One whose prompt ends inside a block: that block has its key once an answer fills it."""
    answer = prompt("a", picture((18, 4)))
    found = BlockKeys(answer, SIZE, outlive=True)
    assert len(found.up_to(N)) == 5
    for token in (50, 51):
        answer.append(token)
    expected = keys(answer, n_tokens=24)
    answer.media = (picture((18, 4), content=b""),)
    assert [key.digest for key in found.up_to(24)] == expected and len(expected) == 6


def test_without_a_cache_one_answer_has_no_keys() -> None:
    assert keys(prompt(), outlive=False) == []


def test_generated_tokens_are_part_of_it_and_keys_are_made_once() -> None:
    answer = prompt(position_delta=-3)
    found = BlockKeys(answer, SIZE, outlive=True)
    before = [*found.up_to(N)]
    for token in range(50, 58):
        answer.append(token)
    known = found.up_to(answer.n_tokens)
    assert known[:5] == before and len(known) == 7
    longer = request("b", 30, 2)  # a chat that begins with both
    longer.ids[:30], longer.root = answer.ids[:30], answer.root
    longer.positions = np.array(answer.positions_of(0, 30))
    assert [key.digest for key in known] == keys(longer, n_tokens=30)
    longer.positions[:, 25:] += 1
    assert [key.digest for key in known][:6] == keys(longer, n_tokens=30)[:6] != keys(longer, n_tokens=30)
