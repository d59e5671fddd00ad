"""Answers that are held to a form: valid by what others say, right beside every other rule, alone when they fail."""

import itertools
import json
import os
import re
import signal
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
import torch
from llguidance.numpy import apply_token_bitmask_inplace

from model.engine import engine as engines
from model.engine.messages import FromEngine, SamplingParams, StepDone
from model.engine.plan import RequestError
from model.engine.sampling.answer_form import AnswerForm
from model.engine.sampling.forms import Forms
from model.engine.sampling.history import History
from model.engine.sampling.logits_processors import BITS, apply_rules
from model.engine.sampling.rows import Row
from model.net.multimodal import MultimodalLM
from model.staging.layout import SamplingArrays
from model.staging.packing import Packing
from tests.model.engine.engine_harness import EngineHarness
from tests.model.engine.forms_harness import AMBIGUOUS, DATE, PICTURE, TEXT, Held, children
from tests.model.staging.late import Late
from tests.tables import each_of
from tokenization.chat.grammar import CompiledGrammar

pytestmark = pytest.mark.network


@pytest.fixture
def held(harness: EngineHarness, model: MultimodalLM) -> Held:
    return Held(harness, model)


def test_answers_fit_their_form_and_end_by_the_models_own_end(held: Held) -> None:
    date = held.form("regex", DATE)
    choice = held.form("choice", json.dumps(["yes", "no", "può darsi"]))
    requests = [held.asked(f"d{i}", date, PICTURE if i % 2 else TEXT, seed=i) for i in range(4)]
    requests += [held.asked(f"c{i}", choice, seed=i) for i in range(4)]
    requests.append(held.asked("free", None))
    *found, free = held.answers(held.engine(tokens=24), *requests)
    assert len(free) == 48
    for tokens in found:
        assert tokens[-1] == held.end
    assert all(re.fullmatch(DATE, held.text(tokens)) for tokens in found[:4])
    assert all(held.text(tokens) in ("yes", "no", "può darsi") for tokens in found[4:])
    assert len({held.text(tokens) for tokens in found[:4]}) > 1


def test_json_is_valid_and_has_the_blanks_of_json_dumps(held: Held) -> None:
    schema = {
        "type": "object", "required": ["a", "b"], "additionalProperties": False,
        "properties": {"a": {"type": "array", "items": {"enum": [1, 22]}, "minItems": 2, "maxItems": 3},
                       "b": {"type": "boolean"}},
    }  # fmt: skip
    form = held.form("json_schema", json.dumps(schema))
    for tokens in held.answers(held.engine(), *(held.asked(f"j{i}", form, seed=i) for i in range(5))):
        text = held.text(tokens)
        assert tokens[-1] == held.end and text == json.dumps(json.loads(text))
        assert set(json.loads(text)) == {"a", "b"} and set(json.loads(text)["a"]) <= {1, 22}


def test_a_form_of_everything_changes_no_token(held: Held) -> None:
    """Where the model draws only text, which is UTF-8, and its own end: other ids are kept from it in both."""
    texts = [i for i in range(held.model.vocab_size) if held.tokenizer.token_bytes(i).isascii()]
    ids = (held.end, *(i for i in texts if held.tokenizer.token_bytes(i) and not held.tokenizer.is_special(i)))
    everything = held.form("regex", r"(.|\n)*")
    rules: tuple[dict[str, Any], ...] = ({"temperature": 0.0}, {"top_p": 0.9}, {"repetition_penalty": 1.3, "top_k": 40})
    for i, changes in enumerate(rules):
        with_form = held.asked(f"with {i}", everything, allowed_token_ids=ids, **changes)
        without = held.asked(f"without {i}", None, allowed_token_ids=ids, **changes)
        one, other = held.answers(held.engine(), with_form, without)
        assert one == other and len(one) > 1


def test_logprobs_are_the_models_own(held: Held) -> None:
    form = held.form("choice", '["zq"]')
    held.answers(held.engine(), held.asked("a", form, logprobs=True, top_logprobs=3, temperature=0.0))
    events = held.harness.events["a"]
    free = held.asked("b", None, logprobs=True, top_logprobs=3, temperature=0.0, max_tokens=1)
    held.answers(held.engine(), free)
    assert [t for t, _ in events[0].token.top] == [t for t, _ in held.harness.events["b"][0].token.top]
    assert events[0].token.logprob is not None and events[0].token.logprob < -1  # what the mask left was not likely
    assert events[0].token.id not in [t for t, _ in events[0].token.top]


def test_answers_to_one_prompt_go_their_own_ways(held: Held) -> None:
    held.answers(held.engine(), held.asked("n", held.form("regex", DATE), n=4))
    texts = set()
    for i in range(4):
        tokens = [event.token.id for event in held.harness.events["n"] if event.index == i]
        texts.add(held.text(tokens))
    assert len(texts) > 1 and all(re.fullmatch(DATE, text) for text in texts)


@each_of("prefix_cache", ["off", "on"])
def test_a_preempted_answer_goes_on_in_its_form(held: Held, prefix_cache: Literal["on", "off"]) -> None:
    """Where blocks are kept it is begun anew in the middle of its own answer."""
    form = held.form("regex", "([a-z][0-9]){45}")
    requests = [held.asked(f"p{i}", form, seed=i, max_tokens=120, frequency_penalty=0.5) for i in range(3)]
    engine = held.engine(kv_tokens=192, max_model_len=160, prefix_cache=prefix_cache)
    for tokens in held.answers(engine, *requests):
        assert re.fullmatch("([a-z][0-9]){45}", held.text(tokens))
    assert engine.stats.preemptions > 0


def test_rules_and_forms_hold_together(held: Held) -> None:
    """Each rule alone, and all rows of one step: behind one without a form, each form its own."""
    a, z = (held.tokenizer.encode(letter)[0] for letter in "az")
    text = tuple(i for i in range(held.tokenizer.vocab_size) if held.tokenizer.token_bytes(i))
    rules: tuple[dict[str, Any], ...] = (
        {"min_tokens": 3}, {"presence_penalty": 1.0}, {"frequency_penalty": -2.0}, {"repetition_penalty": 1.5},
        {"logit_bias": ((a, 5.0), (z, 9.0))}, {"min_p": 0.01}, {"top_k": 3}, {"bad_words": ((a,),)},
        {"allowed_token_ids": (held.end, *text)},
    )  # fmt: skip
    patterns = [f"[{chr(ord('a') + i)}-{chr(ord('d') + i)}]{{1,8}}" for i in range(len(rules))]
    asked = [
        held.asked(f"r{i}", held.form("regex", pattern), **changes)
        for i, (pattern, changes) in enumerate(zip(patterns, rules, strict=True))
    ]
    alone = [held.answers(held.engine(), one)[0] for one in asked]
    for name in list(held.harness.events):
        del held.harness.events[name], held.harness.finished[name]
    free = held.asked("free", None, repetition_penalty=1.2)
    _, *found = held.answers(held.engine(seqs=16, tokens=256), free, *asked)
    assert found == alone
    for pattern, changes, tokens in zip(patterns, rules, found, strict=True):
        assert re.fullmatch(pattern, held.text(tokens)) and tokens[-1] == held.end
        assert len(tokens) > changes.get("min_tokens", 0)
        assert "bad_words" not in changes or a not in tokens


def test_an_answer_that_is_cut_is_the_beginning_of_one_that_fits(held: Held) -> None:
    """By max_tokens, for several answers, beside rules, with a prompt in chunks, and behind one that is kept."""
    sayings = ("the first of them", "the second one", "another text")
    form = held.form("choice", json.dumps(sayings))
    t = held.tokenizer.encode("t")[0]
    rules: tuple[dict[str, Any], ...] = (
        {}, {"min_tokens": 2}, {"frequency_penalty": 1.5}, {"repetition_penalty": 1.4}, {"logit_bias": ((t, 4.0),)},
    )  # fmt: skip
    engine, most, seen = held.engine(tokens=24), (2, 5, 48), set()
    for i, (changes, max_tokens) in enumerate(itertools.product(rules, most)):
        name = f"r{i}"
        held.harness.submit(engine, held.asked(name, form, [str(TEXT[0])] * 8, n=3, max_tokens=max_tokens, **changes))
        messages: list[FromEngine] = []
        while not engine.idle:
            messages += engine.step()
        held.harness.book(messages)
        (n_cached,) = (one.begun[name] for one in messages if isinstance(one, StepDone) and name in one.begun)
        assert (n_cached > 0) == (i > 0)
        for index in range(3):
            events = [event for event in held.harness.events[name] if event.index == index]
            text, finish = held.text([event.token.id for event in events]), events[-1].finish
            assert text in sayings if finish == "stop" else any(one.startswith(text) for one in sayings), (i, text)
            seen.add(finish)
    assert seen == {"stop", "length"}
    held.harness.assert_clean(engine)


def open_form(vocab: int, drawable: np.ndarray) -> AnswerForm:
    """drawable: bool, by id; the one at `vocab` says that the answer may end, by 7 or 9."""
    form = AnswerForm(Forms(Path(), vocab, 0.05, 1 << 20), CompiledGrammar(source="x"), (7, 9), 0, b"")
    form.mask = np.packbits(drawable, bitorder="little").view(np.int32)
    return form


def test_why_no_token_is_left_is_what_sets_of_ids_say() -> None:
    vocab, random = 320, np.random.default_rng(2)
    for share, ends, excluded, allowed in itertools.product(
        (0.0, 0.01, 1.0), (False, True), ((), (7,), (7, 9, vocab, vocab + 63)), (None, [7], [5, 9], [*range(40, vocab)])
    ):
        drawable = random.random(vocab + 32) < share
        drawable[vocab:] = ends
        left = {*np.flatnonzero(drawable[:vocab]).tolist(), *((7, 9) if ends else ())} - {*excluded}
        left &= left if allowed is None else {*allowed}
        refusal = open_form(vocab, drawable).refusal(excluded, None if allowed is None else np.array(allowed))
        assert (refusal is None) == bool(left), (share, ends, excluded, allowed)


def test_why_no_token_is_left_costs_a_step_little() -> None:
    """Sets of 150,000 ids took 28 to 70 ms for each answer of such a request."""
    vocab = 151_936
    form, special = open_form(vocab, np.ones(vocab + 32, bool)), np.array([11])
    rules = SamplingParams(max_tokens=9, seed=0, allowed_token_ids=tuple(range(vocab)))
    row = Row(sampling=rules, position=0, history=History.of(rules, np.array([1])))
    begun = time.process_time()
    for _ in range(20):
        assert form.refusal((11,), special) is not None and not row.exhausted([5])
    assert time.process_time() - begun < 0.2


def test_why_no_token_is_left_is_asked_once_for_all_answers(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[AnswerForm] = []
    refusal = AnswerForm.refusal

    def counted(form: AnswerForm, excluded: Collection[int], allowed: np.ndarray | None) -> RequestError | None:
        asked.append(form)
        return refusal(form, excluded, allowed)

    monkeypatch.setattr(AnswerForm, "refusal", counted)
    banned = held.tokenizer.encode("a")[0]
    code, _ = held.failure(held.asked("all", held.form("choice", '["a"]'), n=8, bad_words=((banned,),)))
    assert code == "structured_output" and len(asked) == 1


def test_where_no_token_is_left_the_request_alone_ends(held: Held) -> None:
    letter = held.form("choice", '["a"]')
    a, b = held.tokenizer.encode("a")[0], held.tokenizer.encode("b")[0]
    engine = held.engine()
    asked: dict[str, dict[str, Any]] = {
        "bad words": {"bad_words": ((a,),)}, "min_tokens": {"min_tokens": 9}, "allowed": {"allowed_token_ids": (b,)},
    }  # fmt: skip
    for name, changes in asked.items():
        beside = held.asked(f"beside {name}", None)
        held.harness.submit(engine, beside)
        code, message = held.failure(held.asked(name, letter, **changes), engine)
        assert code == "structured_output" and "leave no token" in message, name
        assert len(held.harness.tokens(beside.request_id)) == 48
    ignoring = held.asked("ignore_eos", letter)
    ignoring = msgspec.structs.replace(ignoring, sampling=msgspec.structs.replace(ignoring.sampling, stop_token_ids=()))
    assert held.failure(ignoring, engine)[0] == "structured_output"
    assert held.text(held.harness.tokens("ignore_eos")) == "a"


def test_a_matcher_in_error_ends_its_request_alone(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one whose step exceeds the library's limits: here it was told a token that nobody drew."""
    engine = held.engine()
    begin = AnswerForm.begin

    def broken(self: AnswerForm) -> None:
        self.taken.append(held.tokenizer.encode("!")[0])
        begin(self)

    monkeypatch.setattr(AnswerForm, "begin", broken)
    beside = held.asked("beside", None)
    held.harness.submit(engine, beside)
    assert held.failure(held.asked("x", held.form("regex", DATE)), engine)[0] == "structured_output"
    assert len(held.harness.tokens("beside")) == 48


def test_a_form_whose_steps_are_expensive_ends_its_request_alone_and_is_remembered(held: Held) -> None:
    """By its own processor time; it stands here as no worker has tried it. Other clients' forms are others."""
    engine = held.engine(kv_tokens=8192)
    held.harness.submit(engine, held.asked("beside", None))
    asked = held.asked("x", AMBIGUOUS, min_tokens=700, max_tokens=700)
    code, message = held.failure(asked, engine)
    assert code == "structured_output" and "too much processor time" in message
    assert 20 < len(held.harness.tokens("x")) < 700 and len(held.harness.tokens("beside")) == 48
    assert held.failure(held.asked("y", AMBIGUOUS), engine) == (code, message)
    assert held.harness.tokens("y") == [], "it is known"
    salted = msgspec.structs.replace(held.asked("z", AMBIGUOUS, max_tokens=3), salt=b"another client's")
    assert held.answers(engine, salted)[0]


def test_an_engine_refuses_a_grammar_that_its_library_does(held: Held) -> None:
    assert held.failure(held.asked("x", CompiledGrammar(source="{}")))[0] == "structured_output"
    assert held.failure(held.asked("y", CompiledGrammar(source='{"grammars": [{"lark_grammar": "start: a"}]}')))[0]


def test_special_tokens_come_only_as_marks(held: Held) -> None:
    mark = held.tokenizer.special["<|im_start|>"]
    source = json.dumps({"grammars": [{"lark_grammar": f"start: <[{mark}]> /[ab]/"}]})
    (tokens,) = held.answers(held.engine(), held.asked("m", CompiledGrammar(source=source, marks=(mark,))))
    assert tokens[0] == mark and len(tokens) == 3
    assert held.failure(held.asked("none", CompiledGrammar(source=source)))[0] == "structured_output"


@each_of("prefix_cache", ["off", "on"])
def test_what_is_drawn_is_the_same_however_late_masks_are(held: Held, prefix_cache: Literal["on", "off"]) -> None:
    """A step that hardly waits keeps rows back: of prompts in chunks, of several answers, of preempted ones."""
    form = held.form("regex", "([a-z][0-9]){20}")
    found, steps = dict[int, Any](), dict[int, int]()
    for ms in (60_000, 1):
        engine = held.engine(kv_tokens=256, max_model_len=160, tokens=24, prefix_cache=prefix_cache, form_step_ms=ms)
        requests = [held.asked(f"{ms}-{i}", form, PICTURE if i == 2 else TEXT, seed=i, max_tokens=60) for i in range(4)]
        requests += [held.asked(f"{ms}-of-{n}", form, [*TEXT] * n, n=n, seed=n, max_tokens=9) for n in (2, 3)]
        requests.append(held.asked(f"{ms}-free", None, seed=9))
        for request in requests:
            held.harness.submit(engine, request)
        steps[ms] = 0
        while not engine.idle:
            held.harness.book(engine.step())
            engine.check_integrity()
            steps[ms] += 1
        held.harness.assert_clean(engine)
        assert engine.stats.preemptions > 0
        found[ms] = [
            [(event.index, event.token.id) for event in held.harness.events[one.request_id] if event.index == i]
            for one in requests
            for i in range(one.sampling.n)
        ]
    assert found[1] == found[60_000] and steps[1] > steps[60_000] + 10


def test_a_late_row_has_no_part_of_the_steps_until_its_mask_is_there(held: Held) -> None:
    """Its client's process is stopped meanwhile; what goes on beside it has the steps alone."""
    engine = held.engine(form_step_ms=1)
    held.harness.submit(engine, held.asked("x", held.form("regex", "[ab]{40}")))
    while len(held.harness.tokens("x")) < 3:
        held.harness.book(engine.step())
    held.harness.submit(engine, held.asked("beside", None, max_tokens=400))
    both = False
    while not both:  # a step that its mask was there for
        messages = engine.step()
        held.harness.book(messages)
        both = any(isinstance(one, StepDone) and len(one.tokens) == 2 for one in messages)
    assert engine._forms is not None and engine._forms._server is not None
    (process,) = children(engine._forms._server._process.pid)
    os.kill(process, signal.SIGSTOP)
    rows = []
    for _ in range(8):
        messages = engine.step()
        held.harness.book(messages)
        rows += [(one.n_tokens, len(one.tokens)) for one in messages if isinstance(one, StepDone)]
    os.kill(process, signal.SIGCONT)
    assert rows[-5:] == [(1, 1)] * 5 and (2, 1) in rows, rows
    held.harness.run(engine)
    assert re.fullmatch("[ab]{40}", held.text(held.harness.tokens("x")))


def test_no_step_waits_for_a_mask_that_takes_long(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the last one took: such a row comes into the step with its mask."""
    seen: list[tuple[bool, bool]] = []
    fill = Forms.fill

    def watched(self: Forms, forms: list[AnswerForm], out: np.ndarray) -> list[int]:
        seen.extend((form.is_slow, form.ready) for form in forms)
        return fill(self, forms, out)

    monkeypatch.setattr(Forms, "fill", watched)
    code, _ = held.failure(held.asked("x", AMBIGUOUS, min_tokens=700, max_tokens=700), held.engine(kv_tokens=8192))
    assert code == "structured_output"
    slow = [ready for is_slow, ready in seen[1:] if is_slow]  # the first mask is compiled, which a step may wait for
    assert len(slow) > 3 and all(slow)


def test_logits_that_are_not_finite_end_a_request_whose_mask_is_late(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: what was computed so is kept for no other request."""
    compute = MultimodalLM.compute_logits
    monkeypatch.setattr(MultimodalLM, "compute_logits", lambda self, hidden: compute(self, hidden) * float("nan"))
    engine = held.engine(form_step_ms=1)
    held.harness.submit(engine, held.asked("x", held.form("regex", "[ab]{40}")))
    held.harness.book(engine.step())
    assert held.harness.finished["x"].reason == "failed"
    held.harness.assert_clean(engine)


def test_masks_are_one_copy_more_in_steps_with_forms_alone(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "open_streams", lambda device: Late())
    sent: list[int] = []
    send = Packing.send

    def counted(self: Packing) -> Any:
        sent.append(1)
        return send(self)

    monkeypatch.setattr(Packing, "send", counted)
    engine = held.engine()
    steps: list[int] = []
    held.harness.submit(engine, held.asked("form", held.form("choice", '["yes", "no"]')))
    held.harness.submit(engine, held.asked("free", None, max_tokens=12))
    while not engine.idle:
        before = len(sent)
        held.harness.book(engine.step())
        steps.append(len(sent) - before)
    n = len(held.harness.tokens("form"))
    assert held.text(held.harness.tokens("form")) in ("yes", "no")
    assert steps == [2] * n + [1] * (len(steps) - n) and len(steps) > n


def test_masks_are_made_behind_the_launch_of_the_forward_pass(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def noted(kind: Any, method: str, said: str) -> None:
        real = getattr(kind, method)

        def call(self: Any, *given: Any) -> Any:
            order.append(said)
            return real(self, *given)

        monkeypatch.setattr(kind, method, call)

    noted(Forms, "fill", "masks")
    noted(MultimodalLM, "forward", "forward")
    held.answers(held.engine(), held.asked("form", held.form("choice", '["yes"]')))
    assert order[:2] == ["forward", "masks"] and order.count("masks") == order.count("forward")


BITS_OF = {"words": torch.tensor(BITS), "bytes": torch.tensor(BITS[:8]).byte()}


@each_of("bits", BITS_OF.values(), ids=BITS_OF)
def test_bits_of_a_mask_are_ids(bits: torch.Tensor) -> None:
    random = np.random.default_rng(0)
    for vocab in (64, 71, 1000):
        for rows in (None, [1, 3]):
            chosen = list(range(70)) if rows is None else rows
            allowed = random.random((len(chosen), -(-vocab // 32) * 32)) < 0.3
            words = np.packbits(allowed, axis=1, bitorder="little").view(np.int32)
            logits = torch.randn(70 if rows is None else 5, vocab)
            expected = logits.clone()
            theirs = expected[chosen].numpy()
            apply_token_bitmask_inplace(theirs, words)
            expected[chosen] = torch.from_numpy(theirs)
            masked = None if rows is None else torch.tensor(rows)
            apply_rules(logits, SamplingArrays(masked=masked), None, (torch.from_numpy(words), bits))
            assert torch.equal(logits, expected)


@each_of("ids", [[0], [15], [31], [32], [0, 31], [63, 70], []], ids=str)
@each_of("bits", BITS_OF.values(), ids=BITS_OF)
def test_the_ends_of_a_words_bits(bits: torch.Tensor, ids: list[int]) -> None:
    """What is named stays as it was, and all else is cut; bit 31 is the sign of its word."""
    words = torch.zeros(1, 3, dtype=torch.int32)
    for i in ids:
        words[0, i // 32] += -(2**31) if i % 32 == 31 else 2 ** (i % 32)
    logits = torch.arange(71.0)[None]
    apply_rules(logits, SamplingArrays(), None, (words, bits))
    assert [x if x == i else None for i, x in enumerate(logits[0].tolist()) if x > -torch.inf] == ids
