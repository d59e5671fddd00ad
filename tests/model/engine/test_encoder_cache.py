"""The books of embeddings: what is reserved, made and on the device, and what a runner is told to let go."""

import pytest

from model.engine.encoder_cache import EncoderCache
from model.engine.kv_blocks import BlockError
from model.engine.plan import Outcome, RequestError
from tests.model.engine.bookkeeping import medium

A = tuple(medium(("a", i), (4 * i, 4), nbytes=30) for i in range(3))
B = (medium(("b", 0), (0, 4), nbytes=30),)


def made(*items: object) -> Outcome:
    return Outcome(tokens={}, filled=tuple(item.key for item in items))  # type: ignore[attr-defined]


def test_a_reservation_lasts_from_the_first_admission_to_the_end() -> None:
    books = EncoderCache(100, 0)
    assert not books.reserves("a")
    books.reserve("a", 1, A)
    books.reserve("a", 1, A)  # a second answer, or again after a preemption
    assert books.reserved == books.held[1] == 90 and books.reserves("a") and not books.held.room(30)
    books.release("a")
    books.release("nobody")
    assert books.reserved == 0
    books.check_integrity([])


def test_what_the_device_has_no_room_for_is_in_host_memory_alone() -> None:
    books = EncoderCache(200, 65)
    books.reserve("a", 1, A)
    assert books.plan({"a"}, A) == ((), (("a", 2),)) and books.on_device == 60
    assert books.holds(("a", 2)), "the step under way makes it"
    books.commit(made(*A))
    books.check_integrity(["a"])
    books.reserve("b", 2, B)
    assert books.plan({"b"}, B) == ((), (("a", 0), ("a", 1))), "the prompt of a is computed: its place is free"
    books.commit(made(*B))
    assert books.on_device == 30 and books.holds(("a", 0))


def test_embeddings_of_a_request_that_ended_are_freed_before_others_are_made() -> None:
    books = EncoderCache(100, 100)
    books.reserve("a", 1, A)
    books.plan({"a"}, A[:2])
    books.commit(made(*A[:2]))
    books.release("a")
    books.reserve("a", 1, A)  # another request of the same name
    assert not books.holds(("a", 0))
    assert books.plan({"a"}, A[:1]) == ((("a", 0), ("a", 1)), ()) and books.on_device == 30
    with pytest.raises(BlockError, match="not dropped"):
        books.commit(made(A[0]))


def test_what_failed_is_not_held() -> None:
    books = EncoderCache(100, 100)
    books.reserve("a", 1, A)
    books.plan({"a"}, A)
    failed = {A[1].key: RequestError("a bad picture")}
    books.commit(Outcome(tokens={}, filled=(A[0].key, A[2].key), failed=failed))
    assert books.on_device == 60 and [books.holds(item.key) for item in A] == [True, False, True]
    books.release("a")
    assert books.plan((), ()) == ((A[0].key, A[2].key), ()) and books.on_device == 0


def test_integrity_sees_planted_faults() -> None:
    def books() -> EncoderCache:
        found = EncoderCache(100, 100)
        found.reserve("a", 1, A)
        found.plan({"a"}, A)
        found.commit(made(*A))
        found.check_integrity(["a"])
        return found

    def wrong(found: EncoderCache, says: str, *requests: str) -> None:
        with pytest.raises(BlockError, match=says):
            found.check_integrity(requests)

    wrong(books(), "a request that ended")
    found = books()
    found.held.take(1, 1)
    wrong(found, "budget", "a")
    found = books()
    found.on_device -= 1
    wrong(found, "on the device", "a")
    found = books()
    found.commit(made(*B))
    wrong(found, "without a reservation", "a")
