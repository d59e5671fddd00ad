"""The processes of forms end, hang or have no descriptors: forms begin again, stand where they stood, or end."""

import os
import re
import resource
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from model.engine.sampling import forms as module
from model.engine.sampling.answer_form import AnswerForm
from model.engine.sampling.forms import Forms
from shm import stillness
from tests.model.engine.forms_harness import WORD, begun, children, masks, server_of, until
from tests.tables import each_of
from tokenization.chat.grammar import CompiledGrammar
from tokenization.text.tokenizer import Tokenizer


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So short that the tick of the kernel's clock, 10 ms, is what tells work."""
    monkeypatch.setattr(stillness, "LOOK_SECONDS", 0.03)


@each_of("grammar, code", [(CompiledGrammar(source="{}"), "structured_output"), (WORD, "internal")])
def test_what_ends_one_form_ends_no_other(opened: Callable[..., Forms], grammar: CompiledGrammar, code: str) -> None:
    """Another client's has another process; its own client's others begin again, as do all of one that was idle."""
    forms = opened()
    beside, own = begun(forms), begun(forms, client=1)
    masks(forms, beside, own)
    process = max(children(server_of(forms)))  # the newer one
    if code == "internal":
        os.kill(process, signal.SIGSTOP)
    form = begun(forms, grammar, client=1)
    if code == "internal":
        forms.dispatch()
        assert own.process is not None and form.process is own.process
        own.process.at[0] = form.slot  # as where it is at that form
        os.kill(process, signal.SIGKILL)
        until(lambda: form.error is not None, forms)
    assert masks(forms, form) == [[]] and form.error is not None and form.error.code == code
    assert masks(forms, own) == masks(forms, beside) and own.error is None


def test_forms_of_a_process_that_was_killed_begin_again(opened: Callable[..., Forms], tokenizer: Tokenizer) -> None:
    forms, a = opened(), tokenizer.encode("a")[0]
    behind = behind_one_token(forms, a)[1:] * 2
    found = [begun(forms), begun(forms)]
    before = masks(forms, *found)
    until(lambda: len(children(server_of(forms))) == 1, forms)
    (process,) = children(server_of(forms))
    os.kill(process, signal.SIGKILL)
    until(lambda: all(form.process is None for form in found), forms)
    assert masks(forms, *found) == before, "masks that were there are there"
    for form in found:
        form.add(a)
    assert masks(forms, *found) == behind and len(children(server_of(forms))) == 1


def behind_one_token(forms: Forms, token: int) -> list[list[int]]:
    """The masks of a form that no process lost."""
    form = begun(forms, client=9)
    found = masks(forms, form)
    form.add(token)
    found += masks(forms, form)
    form.end()
    return found


@each_of("stopped", [False, True])
def test_forms_go_on_when_the_process_that_forks_is_killed_or_stopped(
    opened: Callable[..., Forms], tokenizer: Tokenizer, quick_looks: None, stopped: bool
) -> None:
    """Those that run, and those of new clients, which wait for a child: all in children of another one."""
    forms, a = opened(), tokenizer.encode("a")[0]
    first, second = behind_one_token(forms, a)
    one, other = begun(forms), begun(forms, client=1)
    assert masks(forms, one, other) == [first, first]
    one.add(a)
    assert masks(forms, one) == [second]
    before = server_of(forms)
    inside = children(before)
    os.kill(before, signal.SIGSTOP if stopped else signal.SIGKILL)
    new = begun(forms, client=2)
    other.add(a)
    assert masks(forms, new, one, other) == [first, second, second]
    if not stopped:
        one.add(a)
        other.add(a)
        assert masks(forms, one) == masks(forms, other)
    until(lambda: forms._server is not None and server_of(forms) != before, forms)
    until(lambda: not any(_runs(pid) for pid in inside))
    assert not Path(f"/proc/{before}").exists()


def test_a_process_that_loads_for_long_is_not_taken_for_one_that_hangs(
    opened: Callable[..., Forms], quick_looks: None
) -> None:
    """The kernel counts its work: this one's vocabulary takes many looks."""
    forms = opened()
    form = begun(forms)
    forms.dispatch()
    process = server_of(forms)
    until(lambda: form.filled, forms)
    assert server_of(forms) == process


def test_a_child_that_is_stopped_ends_the_form_that_it_is_at(opened: Callable[..., Forms], quick_looks: None) -> None:
    """Its client's others begin again; two such would else keep all new forms waiting."""
    forms = opened()
    own = begun(forms)
    before = masks(forms, own)
    (child,) = children(server_of(forms))
    os.kill(child, signal.SIGSTOP)
    form = begun(forms)
    forms.dispatch()
    assert own.process is not None and form.process is own.process
    own.process.at[0] = form.slot  # as where it is at that form
    until(lambda: form.error is not None, forms)
    assert form.error is not None and form.error.code == "internal"
    assert masks(forms, own) == before and masks(forms, begun(forms)) == before


def leave_descriptors(pid: int, n: int) -> None:
    """Room for so many more than it has open."""
    taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    most = [number for number in range(len(taken) + n + 1) if number not in taken][n]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]))


@each_of("n", [0, 1, 2])
def test_a_form_whose_child_cannot_be_ends(opened: Callable[..., Forms], n: int) -> None:
    """The kernel drops the descriptors of a fork, or a child begins, which has no room for its own and ends."""
    forms = opened()
    running = begun(forms)
    before = masks(forms, running)
    until(lambda: running.process is not None and running.process.stillness is not None, forms)  # the fork is over
    most = resource.prlimit(server_of(forms), resource.RLIMIT_NOFILE)
    n_before = forms._n_processes
    leave_descriptors(server_of(forms), n)
    lost = begun(forms, client=1)
    assert masks(forms, running, lost) == [*before, []]
    assert lost.error is not None and lost.error.code == "internal"
    assert 1 <= forms._n_processes - n_before <= module.MOST_LOST
    resource.prlimit(server_of(forms), resource.RLIMIT_NOFILE, most)
    assert masks(forms, begun(forms, client=1)) == before and running.error is None


def test_forms_whose_child_has_no_descriptors_begin_again_in_another(opened: Callable[..., Forms]) -> None:
    forms = opened()
    found = [begun(forms)]
    before = masks(forms, *found)
    leave_descriptors(children(server_of(forms))[0], 1)
    found += [begun(forms), begun(forms)]
    assert masks(forms, *found) == before * 3


def _is_another(forms: Forms, server: object) -> bool:
    return forms._server is not server


def _has_failed(form: AnswerForm) -> bool:
    return form.error is not None


def test_a_form_whose_processes_end_before_each_of_its_masks_ends(opened: Callable[..., Forms]) -> None:
    forms = opened()
    form = begun(forms)
    n_ended = 0
    while form.error is None:
        forms.dispatch()
        before = forms._server
        os.kill(server_of(forms), signal.SIGKILL)
        n_ended += 1
        until(partial(_is_another, forms, before), forms)
    assert form.error.code == "internal" and n_ended == module.MOST_LOST
    assert masks(forms, begun(forms))[0]


def test_a_form_that_begins_again_goes_before_new_ones_of_its_client(
    opened: Callable[..., Forms], tokenizer: Tokenizer
) -> None:
    """Those may end their process again and again: each one that ends brings this one a token further."""
    forms, a = opened(), tokenizer.encode("a")[0]
    honest = begun(forms)
    for n in range(2 * module.MOST_LOST):
        masks(forms, honest)
        honest.add(a)
        until(lambda: honest.process is None or not honest.process.asked, forms)  # of those that have left
        (child,) = children(server_of(forms))
        os.kill(child, signal.SIGSTOP)
        ending = begun(forms)
        forms.dispatch()
        waiting = [begun(forms) for _ in range(3)]
        assert ending.process is not None
        ending.process.at[0] = ending.slot  # as where it is at that one
        os.kill(child, signal.SIGKILL)
        until(partial(_has_failed, ending), forms)
        until(lambda: honest.process is not None, forms)
        assert honest.process is not None and next(iter(honest.process.forms.values())) is honest, n
        for form in waiting:
            form.end()
    assert masks(forms, honest)[0] and len(honest.taken) == 2 * module.MOST_LOST and honest.error is None


def test_an_engine_that_is_killed_leaves_no_process(opened: Callable[..., Forms]) -> None:
    """The engine here is a fork of this process, with forms of its own."""
    read, write = os.pipe()
    if (engine := os.fork()) == 0:
        try:
            forms = opened()
            form = begun(forms)
            masks(forms, form)
            os.write(write, f"{server_of(forms)} {children(server_of(forms))[0]}".encode())
            time.sleep(60)
        finally:
            os._exit(1)
    os.close(write)
    with open(read, "rb", 0) as pipe:
        pids = pipe.read(100).split()
    os.kill(engine, signal.SIGKILL)
    os.waitpid(engine, 0)
    assert len(pids) == 2 and re.fullmatch(rb"\d+", pids[0])
    until(lambda: not any(_runs(int(pid)) for pid in pids))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
