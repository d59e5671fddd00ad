"""Token events become deltas; whatever the cut of events, the joined text is the same."""

from typing import Any

from model.engine.messages import Token, TokenEvent
from server.requests.answer import Answer, Answers, Delta
from server.requests.request import ChatRequest
from server.requests.sampling import SamplingRequest
from tests.server.doubles import chat_of
from tests.server.http.answers import joined
from tests.tiny.sentencepiece import trained_pieces
from tokenization.text.bpe import BPETokenizer


def event(token_id: int, finish: Any = None) -> TokenEvent:
    return TokenEvent(request_id="r", token=Token(id=token_id), finish=finish)


def pushed(answer: Answer, events: list[TokenEvent]) -> Delta:
    delta = answer.push(events)
    assert delta is not None
    return delta


def answers_to(tokenizer: BPETokenizer, *, stream: bool = True, first: int = 0, **wishes: Any) -> Answers:
    sampling = SamplingRequest(**wishes)
    request = ChatRequest(id="r", chat=chat_of("text"), chat_param="inputs", sampling=sampling, stream=stream)
    return Answers(request, tokenizer, first)


def run(
    tokenizer: BPETokenizer, ids: list[int], stop: tuple[str, ...] = (), finish: str = "length", step: int = 1
) -> list[Delta]:
    answer = Answer(tokenizer, SamplingRequest(stop=stop))
    events = [event(i) for i in ids[:-1]] + [event(ids[-1], finish)]
    deltas: list[Delta] = []
    for at in range(0, len(events), step):
        deltas.append(pushed(answer, events[at : at + step]))
        if deltas[-1].finish:
            break
    assert answer.n_tokens == sum(len(delta.tokens) for delta in deltas)
    return deltas


def test_characters_are_whole_and_special_tokens_unseen(tokenizer: BPETokenizer) -> None:
    ids = [*tokenizer.encode("你好 fox"), tokenizer.special["<|im_end|>"]]
    for step in (1, 2, 100):
        deltas = run(tokenizer, ids, finish="stop", step=step)
        assert "".join(delta.text for delta in deltas) == "你好 fox"
        assert sum(len(delta.tokens) for delta in deltas) == len(ids)
        assert deltas[-1].finish == "stop" and all(delta.finish is None for delta in deltas[:-1])
        assert all("\ufffd" not in delta.text for delta in deltas)


def test_the_blank_of_a_first_word_is_seen_where_the_answer_goes_on_with_a_text() -> None:
    pieces = BPETokenizer(trained_pieces(), {"</s>": 2})
    ids = [*pieces.encode("the fox"), 2]
    for continues, text in ((False, "the fox"), (True, " the fox")):
        answer = Answer(pieces, SamplingRequest(), continues=continues)
        assert pushed(answer, [event(i) for i in ids[:-1]] + [event(2, "stop")]).text == text


def test_a_cut_character_is_shown_as_broken_at_the_end(tokenizer: BPETokenizer) -> None:
    first_byte = tokenizer.encode("\U0001f600")[0]
    deltas = run(tokenizer, [*tokenizer.encode("a"), first_byte])
    assert "".join(delta.text for delta in deltas) == "a\ufffd"


def test_a_stop_string_across_tokens_is_cut_and_ends(tokenizer: BPETokenizer) -> None:
    ids = tokenizer.encode("one two three")
    for step in (1, 3, 100):
        deltas = run(tokenizer, ids, stop=("o th", "zzz"), step=step)
        assert "".join(delta.text for delta in deltas) == "one tw"
        assert deltas[-1].finish == "stop"


def test_tokens_behind_a_stop_are_dropped(tokenizer: BPETokenizer) -> None:
    answer = Answer(tokenizer, SamplingRequest(stop=("b",)))
    delta = pushed(answer, [event(i) for i in tokenizer.encode("a") + tokenizer.encode("b") + tokenizer.encode("c")])
    assert (delta.text, delta.finish, len(delta.tokens)) == ("a", "stop", 2)


def test_what_might_have_become_a_stop_is_shown_at_the_end(tokenizer: BPETokenizer) -> None:
    deltas = run(tokenizer, tokenizer.encode("one tw"), stop=("two",))
    assert "".join(delta.text for delta in deltas) == "one tw" and deltas[-1].finish == "length"


def test_a_stop_that_the_last_flush_completes_wins(tokenizer: BPETokenizer) -> None:
    first_byte = tokenizer.encode("\U0001f600")[0]
    deltas = run(tokenizer, [*tokenizer.encode("a"), first_byte], stop=("\ufffd",))
    assert "".join(delta.text for delta in deltas) == "a"


def test_ids_without_an_entry_are_tokens_without_text(tokenizer: BPETokenizer) -> None:
    deltas = run(tokenizer, [tokenizer.vocab_size + 1, *tokenizer.encode("a")])
    assert [delta.text for delta in deltas] == ["", "a"] and len(deltas[0].tokens) == 1


def test_a_stop_string_is_shown_where_it_is_asked_for(tokenizer: BPETokenizer) -> None:
    answer = Answer(tokenizer, SamplingRequest(stop=("o th",), include_stop_str_in_output=True))
    delta = pushed(answer, [event(i) for i in tokenizer.encode("one two three")])
    assert (delta.text, delta.finish, delta.cut) == ("one two th", "stop", "o th")


def test_a_stop_token_is_shown_only_where_it_is_asked_for(tokenizer: BPETokenizer) -> None:
    (a,), (b,) = tokenizer.encode("a"), tokenizer.encode("b")
    for include, expected in ((False, "a"), (True, "ab")):
        answer = Answer(tokenizer, SamplingRequest(include_stop_str_in_output=include))
        delta = pushed(answer, [event(a), event(b, "stop")])
        assert (delta.text, len(delta.tokens), delta.cut) == (expected, 2, "")
    answer = Answer(tokenizer, SamplingRequest(include_stop_str_in_output=True))
    special = [event(a), event(tokenizer.special["<|im_end|>"], "stop")]
    assert pushed(answer, special).text == "a", "a special token has no text to show"


def test_no_stop_string_ends_before_min_tokens(tokenizer: BPETokenizer) -> None:
    ids = [*tokenizer.encode("a"), *tokenizer.encode("b")] * 3
    assert len(ids) == 6
    for least, shown in ((0, "a"), (1, "a"), (2, "aba"), (3, "aba"), (5, "ababa"), (6, "ababab")):
        answer = Answer(tokenizer, SamplingRequest(stop=("b",), min_tokens=least))
        assert pushed(answer, [event(i) for i in ids]).text == shown


def test_answers_grow_beside_each_other(tokenizer: BPETokenizer) -> None:
    (a,), (b,) = tokenizer.encode("a"), tokenizer.encode("b")
    answers = answers_to(tokenizer, n=3, stop=("b",))

    def at(index: int, token_id: int, finish: Any = None) -> TokenEvent:
        return TokenEvent(request_id="r", token=Token(id=token_id), finish=finish, index=index)

    first = answers.push([at(2, a), at(0, a), at(2, b), at(1, a)])
    assert [(d.index, d.text, d.finish, d.cut) for d in first] == [
        (0, "a", None, ""), (1, "a", None, ""), (2, "a", "stop", "b"),
    ]  # fmt: skip
    second = answers.push([at(2, a), at(0, a, "length"), at(1, b, "stop")])
    assert [(d.index, d.text, d.finish, d.cut) for d in second] == [(0, "a", "length", ""), (1, "", "stop", "")]
    assert (answers.n_unfinished, answers.n_tokens) == (0, 6)
    assert [joined([d for d in first + second if d.index == i]).text for i in range(3)] == ["aa", "a", "a"]


def test_special_tokens_are_text_where_they_are_asked_for(tokenizer: BPETokenizer) -> None:
    start, end = (tokenizer.special[name] for name in ("<|im_start|>", "<|im_end|>"))
    ids = [*tokenizer.encode("a"), start, *tokenizer.encode("b"), end]

    def text(step: int, **wishes: Any) -> tuple[str, Any]:
        answer = Answer(tokenizer, SamplingRequest(skip_special_tokens=False, **wishes))
        events = [event(i) for i in ids[:-1]] + [event(end, "stop")]
        whole = []
        for at in range(0, len(events), step):
            whole.append(pushed(answer, events[at : at + step]))
            if answer.finish:
                break
        return "".join(delta.text for delta in whole), answer.finish

    for step in (1, 2, 9):
        assert text(step) == ("a<|im_start|>b", "stop"), "the token that ended it is not shown"
        assert text(step, include_stop_str_in_output=True) == ("a<|im_start|>b<|im_end|>", "stop")
        assert text(step, stop=["start|>b"]) == ("a<|im_", "stop"), "a stop string sees them"


def test_what_the_prompt_got_goes_with_the_first_delta(tokenizer: BPETokenizer) -> None:
    answers = answers_to(tokenizer, n=2)
    prompt = [Token(id=3, logprob=-1.0)]
    events = [TokenEvent(request_id="r", token=Token(id=65), index=index) for index in (1, 0)]
    first = answers.push(events, prompt)
    assert [(delta.index, delta.prompt) for delta in first] == [(0, tuple(prompt)), (1, ())]
    (second,) = answers.push(events[1:])
    assert second.prompt == () and joined([first[0], second]).prompt == tuple(prompt)


def test_an_answer_in_one_piece_is_one_delta(tokenizer: BPETokenizer) -> None:
    """The same text and tokens as a stream's, and what the prompt got with the first answer, whichever ends first."""
    (a,), (b,) = tokenizer.encode("a"), tokenizer.encode("b")
    answers = answers_to(tokenizer, stream=False, first=2, n=2)
    prompt = [Token(id=3, logprob=-1.0)]

    def both(token_id: int, *finish: Any) -> list[TokenEvent]:
        return [TokenEvent(request_id="r", token=Token(id=token_id), finish=end, index=i) for i, end in finish]

    assert answers.push(both(a, (0, None), (1, None)), prompt) == []
    (second,) = answers.push(both(b, (0, None), (1, "length")))
    assert (second.index, second.text, len(second.tokens), second.prompt) == (3, "ab", 2, ())
    (first,) = answers.push(both(a, (0, "length")))
    assert (first.index, first.text, len(first.tokens), first.prompt) == (2, "aba", 3, tuple(prompt))
    assert (answers.n_unfinished, answers.n_tokens, answers.text(first)) == (0, 5, "aba")
