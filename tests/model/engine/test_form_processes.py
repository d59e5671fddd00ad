"""The processes of forms: whose turn it is, what they may hold, and for how long steps wait for them."""

import errno
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from model.engine.plan import RequestError
from model.engine.sampling import fork_server
from model.engine.sampling import forms as module
from model.engine.sampling.answer_form import AnswerForm
from model.engine.sampling.form_messages import FormReply
from model.engine.sampling.forms import Forms
from model.engine.sampling.waited_for import WaitedFor
from tests.model.engine.forms_harness import (
    AMBIGUOUS,
    END,
    MIB,
    begun,
    children,
    masks,
    of_lark,
    server_of,
    until,
)
from tokenization.text.tokenizer import Tokenizer

# Its lexer has 50 states more for each letter, of which it may have 50,000.
STATES = of_lark("start: /(.*[ab].{30}x|.*[cd].{30}y)[a-z]*/")


def test_a_form_that_began_again_stands_where_it_stood(opened: Callable[..., Forms], tokenizer: Tokenizer) -> None:
    """A preempted one is in no process, and a client without a form has none."""
    forms = opened()
    a = tokenizer.encode("a")[0]
    one, other = begun(forms), begun(forms, client=1)
    first = masks(forms, one, other)
    assert first[0] == first[1] and END not in first[0] and a in first[0]
    one.add(a)
    one.add(a)
    (behind,) = masks(forms, one)
    assert END in behind and masks(forms, other) == [first[0]]
    one.end()
    until(lambda: len(children(server_of(forms))) == 1)
    one.begin()
    assert masks(forms, one) == [behind]
    for form in (one, other):
        form.end()
        form.end()
    until(lambda: not children(server_of(forms)))
    assert forms._held.total == 0 and not len(forms._clocks)


def test_a_clients_many_forms_do_not_keep_anothers_waiting(
    opened: Callable[..., Forms], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the processor time that they took. One works at a time here, and a step of 1 ms asks for one start."""
    monkeypatch.setattr(module, "MOST_BUSY", 1)
    forms = opened(step_seconds=0.001)
    many = [begun(forms, client=1) for _ in range(6)]
    forms.dispatch()
    others = [begun(forms, client=2) for _ in range(2)]
    order: list[AnswerForm] = []
    while len(order) < 8:
        forms.wait()
        order += [form for form in (*many, *others) if form.filled and form not in order]
    assert others[0] in order[:2] and others[1] in order[:6]
    assert [form for form in order if form in many] == many


def test_forms_hold_so_much_and_the_newest_of_the_largest_client_waits(
    opened: Callable[..., Forms], tokenizer: Tokenizer
) -> None:
    """Until there is room for what it held; then it stands where it stood."""
    forms, random = opened(step_seconds=0.05, nbytes=9 * MIB), np.random.default_rng(1)
    letters = [tokenizer.encode(letter)[0] for letter in "acz"]
    other, first, own = begun(forms, client=2), begun(forms, STATES, client=1), begun(forms, STATES, client=1)
    until(lambda: own.filled and first.filled and other.filled, forms)
    while own.filled:
        own.add(int(random.choice(letters)))
        until(lambda: own.filled or own.process is None, forms)
    n = len(own.taken)
    assert n > 20 and own.error is None
    for _ in range(5):
        first.add(letters[-1])
        until(lambda: first.filled, forms)
    assert other.filled and not own.filled and forms._held.total <= 9 * MIB
    first.end()
    until(lambda: own.filled, forms)
    assert len(own.taken) == n and masks(forms, own)[0]


def test_one_that_holds_more_than_all_may_ends(opened: Callable[..., Forms], tokenizer: Tokenizer) -> None:
    forms = opened(nbytes=3 * MIB)
    form, random = begun(forms, STATES), np.random.default_rng(1)
    letters = [tokenizer.encode(letter)[0] for letter in "acz"]
    for _ in range(5_000):
        masks(forms, form)
        if form.error is not None:
            break
        form.add(int(random.choice(letters)))
    assert form.error is not None and form.error.code == "structured_output"
    assert "more memory than 3 MiB" in form.error.message


def test_one_that_fills_the_librarys_limits_says_so(opened: Callable[..., Forms], tokenizer: Tokenizer) -> None:
    """Each has its own: what the one uses up is not the other's."""
    forms = opened()
    form, other, random = begun(forms, STATES), begun(forms, STATES), np.random.default_rng(1)
    letters = [tokenizer.encode(letter)[0] for letter in "acz"]
    for _ in range(5_000):
        if not masks(forms, form)[0]:
            break
        form.add(int(random.choice(letters)))
    assert form.error is not None and "too many states" in form.error.message
    assert form.error.code == "structured_output" and masks(forms, other)[0]


def test_what_a_first_mask_took_is_not_expected_of_the_next(opened: Callable[..., Forms], tokenizer: Tokenizer) -> None:
    """Sixteen rows of one client are asked for together, though a step of 50 ms would not compile so many."""
    forms, a = opened(step_seconds=0.05), tokenizer.encode("a")[0]
    found = [begun(forms) for _ in range(16)]
    until(lambda: all(form.filled for form in found), forms)
    for form in found:
        form.add(a)
    forms.dispatch()
    assert not any(form.waits for form in found)


def test_an_engine_without_descriptors_loses_its_new_forms_alone(
    opened: Callable[..., Forms], monkeypatch: pytest.MonkeyPatch
) -> None:
    forms = opened()
    running = begun(forms)
    before = masks(forms, running)

    def none(*given: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "memfd_create", none)
    lost = [begun(forms, client=client) for client in (0, 1)]
    assert masks(forms, running, *lost) == [*before, [], []]
    assert {form.error.code for form in lost if form.error is not None} == {"internal"}
    monkeypatch.undo()
    assert masks(forms, begun(forms, client=1)) == before


def test_a_process_that_is_at_something_keeps_no_other_client_waiting(
    opened: Callable[..., Forms], tokenizer: Tokenizer
) -> None:
    """One that is stopped stands here for one that compiles for seconds; its last form's end is its own."""
    forms, a = opened(step_seconds=0.05), tokenizer.encode("a")[0]
    long, other = begun(forms, client=1), begun(forms, client=2)
    until(lambda: long.filled and other.filled, forms)
    assert long.process is not None
    (process,) = (pid for pid in children(server_of(forms)) if pid == min(children(server_of(forms))))
    os.kill(process, signal.SIGSTOP)
    many = [begun(forms, client=1) for _ in range(20)]
    long.add(a)
    for _ in range(30):
        other.add(a)
        until(lambda: other.filled, forms)
    assert not long.filled and not any(form.filled for form in many)
    for form in (long, *many):
        form.end()
    until(lambda: len(children(server_of(forms))) == 1)
    until(lambda: len(forms._clocks) == 1, forms)
    assert other.filled


def test_a_process_is_busy_with_a_form_that_has_left_it(opened: Callable[..., Forms], tokenizer: Tokenizer) -> None:
    """It gets one message at a time all the same, and others' forms begin beside two that are busy so."""
    forms, a = opened(step_seconds=0.05), tokenizer.encode("a")[0]
    found = [begun(forms, client=client) for client in range(2)]
    until(lambda: all(form.filled for form in found), forms)
    processes = children(server_of(forms))
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    for client in range(2):
        leaving = begun(forms, client=client)
        forms.dispatch()
        leaving.end()
    third = begun(forms, client=2)
    for form in found:
        form.add(a)
    forms.wait()
    assert all(form.waits for form in (*found, third))
    for process in processes:
        os.kill(process, signal.SIGCONT)
    until(lambda: all(form.filled for form in (*found, third)), forms)


def test_no_step_waits_on_for_a_client_that_steps_have_waited_for(
    opened: Callable[..., Forms], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first mask that takes long, from one request after the other, is one step's wait and no more."""
    forms, a = opened(step_seconds=0.05), tokenizer.encode("a")[0]
    late, other = begun(forms, client=1), begun(forms, client=2)
    until(lambda: late.filled and other.filled, forms)
    os.kill(min(children(server_of(forms))), signal.SIGSTOP)
    late.add(a)
    waits: list[float] = []
    receive = Forms.receive

    def noted(self: Forms, seconds: float = 0.0) -> None:
        waits.append(seconds)
        receive(self, seconds)

    monkeypatch.setattr(Forms, "receive", noted)
    out = np.empty((2, -(-forms.vocab_size // 32)), np.int32)
    waited = []
    for _ in range(12):
        assert 0 in forms.fill([late, other], out)
        waited.append(sum(waits) > 0)
        waits.clear()
        until(lambda: other.filled, forms)
    assert waited[0] and not any(waited[3:])
    late.end()


def test_a_form_whose_masks_are_cheap_and_expensive_in_turn_stays_slow(
    opened: Callable[..., Forms], tokenizer: Tokenizer
) -> None:
    """What its process says of them is planted: 10 ms, then some that take none."""
    forms, a = opened(step_seconds=0.05), tokenizer.encode("a")[0]
    form = begun(forms)
    until(lambda: form.filled, forms)
    os.kill(children(server_of(forms))[0], signal.SIGSTOP)
    process, slow = form.process, []
    assert process is not None
    for seconds in (0.01, 0.0, 0.0, 0.0, 0.0):
        form.add(a)
        forms.dispatch()
        forms._take(process, FormReply(process.n_asked, 0, [(form.slot, seconds)], [], []))
        slow.append(form.is_slow)
    assert slow == [True, True, True, False, False]


def test_what_was_waited_for_is_paid_off_by_time() -> None:
    waited: WaitedFor[str] = WaitedFor(0.05)
    assert not waited.owes("a", 0.0)
    for begin in (0.0, 0.1):
        waited.since(begin, {"a"}, begin + 0.002)
        waited.since(begin + 0.01, {"a", "b"}, begin + 0.002)
        waited.over(begin + 0.06)
    # 8 and 25 ms of each step; by two, a tenth of the time.
    assert waited.owes("a", 0.16) and not waited.owes("b", 0.16)
    assert waited.owes("a", 0.3) and not waited.owes("a", 0.6)
    waited.since(0.7, {"c"}, 0.8)
    waited.over(0.75)
    assert not waited.owes("c", 0.75)


def test_one_that_gave_way_ends_where_there_is_no_room_for_long(
    opened: Callable[..., Forms], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROOM_SECONDS", 0.2)
    forms, random = opened(step_seconds=0.05, nbytes=6 * MIB), np.random.default_rng(1)
    letters = [tokenizer.encode(letter)[0] for letter in "acz"]
    other, own = begun(forms, client=2), begun(forms, STATES, client=1)
    until(lambda: own.filled and other.filled, forms)
    while own.filled:
        own.add(int(random.choice(letters)))
        until(lambda: own.filled or own.process is None, forms)
    until(lambda: own.error is not None, forms)
    assert own.error is not None and "no room for it beside those of others" in own.error.message
    assert other.filled and masks(forms, other)[0]


def test_the_kernel_ends_a_step_that_takes_long(opened: Callable[..., Forms], tokenizer: Tokenizer) -> None:
    """Of tokens that are replayed no sum is taken, so that each has its own end; another client's go on."""
    forms, a = opened(), tokenizer.encode("a")[0]
    other, form = begun(forms, client=1), forms.hold(AMBIGUOUS, (END,))
    before = masks(forms, other)
    beside = begun(forms)
    form.taken.extend([a] * 400)
    form.begin()
    assert masks(forms, form, other) == [[], *before]
    assert beside.process is None and masks(forms, beside) == before, "its mask stays when its process ends"
    assert form.error is not None and "too much processor time" in form.error.message
    with pytest.raises(RequestError, match="too much processor time"):
        forms.hold(AMBIGUOUS, (END,))


def test_a_forms_file_is_its_mask_once_it_has_begun(
    opened: Callable[..., Forms], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its source may be megabytes, which no limit counts."""
    files: list[int] = []
    make = fork_server.form_file

    def kept(*asked: Any) -> Any:
        file, mask = make(*asked)
        files.append(os.dup(file))
        return file, mask

    monkeypatch.setattr(module, "form_file", kept)
    forms = opened()
    masks(forms, begun(forms))
    assert os.fstat(files[0]).st_size == 4 * (forms.vocab_size // 32 + 1)
    os.close(files[0])
