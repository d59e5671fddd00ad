"""The books of embeddings: what is reserved, made and on the device, and what a runner is told to let go."""

import msgspec
import pytest

from model.engine.encoder_cache import EncoderCache
from model.engine.kv_blocks import BlockError
from model.engine.plan import Outcome, RequestError
from model.engine.sequence import EncoderInput
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


def kept(request: str, *contents: bytes) -> tuple[EncoderInput, ...]:
    """Media of a request that are stored by content."""
    return tuple(
        msgspec.structs.replace(medium((request, i), (4 * i, 4), nbytes=30), content=content)
        for i, content in enumerate(contents)
    )


def encoded(books: EncoderCache, request: str, *contents: bytes) -> None:
    """One request that has come, was encoded and has gone."""
    items = kept(request, *contents)
    books.reserve(request, 1, items)
    missing = books.missing(items)
    dropped, _ = books.plan({request}, missing)
    books.commit(Outcome(tokens={}, filled=tuple(item.stored for item in missing), dropped=dropped))
    books.release(request)
    books.check_integrity([])


def test_what_is_stored_by_content_stays_and_is_told_once() -> None:
    books = EncoderCache(100, 0)
    encoded(books, "a", b"x", b"y")
    assert books.idle == 60 and books.reserved == 0 and (books.queries, books.hits) == (2, 0)
    assert books.news() == ((), ((b"x", 30), (b"y", 30)), ()) and books.news() == ((), (), ())
    encoded(books, "b", b"x")
    assert (books.queries, books.hits) == (3, 1) and books.news().kept == ()
    encoded(books, "c", b"z", b"w")  # y was used least
    assert books.idle == 90 and books.keys() == {b"x", b"z", b"w"}
    assert books.news() == ((b"y",), ((b"z", 30), (b"w", 30)), ()), "who has gone is told nothing"


def test_what_two_requests_have_stays_until_both_have_gone() -> None:
    books = EncoderCache(60, 60)
    encoded(books, "a", b"x")
    first, second = kept("b", b"x"), kept("c", b"x")
    books.reserve("b", 1, first)
    books.reserve("c", 2, second)
    assert books.news().unread == (*first, *second), "their segments will not be opened"
    assert books.reserved == 60 and books.idle == 0, "each has reserved it, and it lies there once"
    books.release("b")
    books.check_integrity(["c"])
    assert books.idle == 0 and not books.missing(second)
    books.release("c")
    assert books.idle == 30 and books.plan((), ()) == ((), (b"x",)), "and a device does not keep it"


def test_what_is_spoiled_is_told_gone_at_once_and_goes_with_the_last_request_that_has_it() -> None:
    books = EncoderCache(90, 0)
    first, second = kept("b", b"x", b"y"), kept("c", b"x")
    encoded(books, "a", b"x")
    books.reserve("b", 1, first)
    books.reserve("c", 2, second)
    books.plan({"b"}, first[1:])
    books.commit(Outcome(tokens={}, filled=(b"y",)))
    books.spoil(first)
    books.spoil(first)  # of another answer to the same prompt
    assert books.news()[:2] == ((b"x", b"y"), ()), "nobody was told of y yet, and nobody is"
    books.release("b")
    books.check_integrity(["c"])
    assert books.keys() == {b"x", b"y"} and not books.missing(second), "c goes on with it"
    assert books.lacks([msgspec.structs.replace(second[0], segment=None)]), "who was promised it comes with a segment"
    books.release("c")
    assert books.idle == 0 and books.plan((), ())[0] == (b"y", b"x") and books.news() == ((), (), ())
    books.commit(Outcome(tokens={}, dropped=(b"y", b"x")))
    encoded(books, "d", b"x")
    assert books.idle == 30 and books.news().kept == ((b"x", 30),), "it is made anew, and stays"


def test_what_is_spoiled_is_made_anew_for_each_who_comes_while_others_have_it() -> None:
    books = EncoderCache(120, 0)
    first, second, third = kept("b", b"x"), kept("c", b"x"), kept("d", b"x", b"y")
    encoded(books, "a", b"x", b"y")
    books.reserve("b", 1, first)
    books.reserve("c", 2, second)
    books.spoil(first)
    books.release("b")
    books.news()
    own = books.unspoiled(third)
    assert books.missing(own) == [own[0]] and own[0].segment is not None and own[1] is third[1], "y is as it was"
    books.reserve("d", 3, own)
    assert books.plan({"c", "d"}, own[:1]) == ((), (("d", 0),)), "a CPU has no second copy"
    books.commit(Outcome(tokens={}, filled=(("d", 0),)))
    books.check_integrity(["c", "d"])
    assert books.keys() == {b"x", b"y", ("d", 0)} and books.news() == ((), (), (own[1],)), "nobody is promised x"
    assert (books.queries, books.hits) == (6, 3), "y was there for d, and x for b and c"
    books.release("c")
    again = kept("e", b"x")
    assert books.unspoiled(again) == again and books.missing(again), "who comes now makes it for all"
    books.release("d")
    assert books.plan((), ())[0] == (b"x", ("d", 0)) and books.idle == 30


def test_who_comes_for_what_is_not_here_lacks_it() -> None:
    books = EncoderCache(60, 0)
    (item,) = kept("b", b"x")
    promised = msgspec.structs.replace(item, segment=None)
    assert books.lacks([promised]) and not books.lacks([item])
    books.reserve("a", 1, kept("a", b"x"))
    books.plan({"a"}, kept("a", b"x"))
    assert books.lacks([promised]) and books.makes(b"x"), "what is being made may fail"
    books.commit(Outcome(tokens={}, filled=(b"x",)))
    assert not books.lacks([promised]) and not books.makes(b"x")


def test_an_item_inside_a_computed_prefix_is_a_hit_once() -> None:
    books = EncoderCache(90, 0)
    items = kept("a", b"x", b"y")  # pads 0 to 4, and 4 to 8
    books.reserve("a", 1, items, n_cached=7)
    assert (books.queries, books.hits) == (2, 1)
    books.plan({"a"}, items)
    books.commit(Outcome(tokens={}, filled=(b"x", b"y")))
    books.reserve("b", 1, kept("b", b"x"), n_cached=4)
    assert (books.queries, books.hits) == (3, 2)


def test_a_request_that_has_gone_before_its_step_ends_leaves_what_was_made() -> None:
    books = EncoderCache(60, 0)
    books.reserve("a", 1, kept("a", b"x"))
    books.plan({"a"}, kept("a", b"x"))
    books.release("a")
    books.reserve("b", 1, kept("b", b"y", b"z"))
    books.commit(Outcome(tokens={}, filled=(b"x",)))
    assert books.idle == 0 and books.keys() == {b"x"}, "there is no room for it: the next plan frees it"
    assert books.plan((), ())[0] == (b"x",)


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
    with pytest.raises(BlockError, match="no step was to make"):
        found.commit(made(*B))
    found = books()
    found.idle += 1
    wrong(found, "take room that requests need", "a")
    found = books()
    del found._users[A[0].key]
    wrong(found, "users of embeddings", "a")
    found = books()
    found._stored[B[0].key] = 30
    wrong(found, "without a reservation", "a")
