"""Thoughts in ids: what opens one, and however tokens cut an answer, what belongs to its thought and what does not."""

from typing import Any

import pytest

from model.engine.messages import Token, TokenEvent
from server.requests.answer import Answer
from server.requests.sampling import SamplingRequest
from tests.tables import each_of
from tokenization.chat.dialects import chat_from_openai
from tokenization.chat.parts import Text
from tokenization.chat.thought_form import THINK, ThoughtForm
from tokenization.text.bpe import BPETokenizer
from tokenization.text.thoughts import ThoughtMarks, ThoughtParser, opens_thought, thought_marks

END = ThoughtForm(opening="<|vision_start|>", closing="<|vision_end|>")  # marks that the tiny vocabulary has


@pytest.fixture
def marks(tokenizer: BPETokenizer) -> ThoughtMarks:
    found = thought_marks(END, tokenizer)
    assert found is not None
    return found


def test_marks_are_one_token_each_or_there_are_none(tokenizer: BPETokenizer, marks: ThoughtMarks) -> None:
    assert (marks.opening, marks.closing) == tuple(tokenizer.special[mark] for mark in (END.opening, END.closing))
    assert thought_marks(THINK, tokenizer) is None and thought_marks(None, tokenizer) is None
    assert thought_marks(ThoughtForm(opening="a", closing="bc<"), tokenizer) is None
    plain = thought_marks(ThoughtForm(opening="a", closing="b"), tokenizer)  # an ordinary token is one, too
    assert plain == ThoughtMarks(opening=tokenizer.encode("a")[0], closing=tokenizer.encode("b")[0])


def test_only_the_last_turn_opens_a_thought(tokenizer: BPETokenizer, marks: ThoughtMarks) -> None:
    start, words = tokenizer.special["<|im_start|>"], tokenizer.encode("\nso")
    a, b = marks.opening, marks.closing
    for ids, opens in (
        ([start, *words, a], True), ([start, a, *words], True), ([start, a, b, a], True), ([a], True),
        ([start, a, *words, b], False), ([start, a, start, *words], False), ([start, *words], False), ([], False),
        ([start, a, -5, *words], False),
    ):  # fmt: skip
        assert opens_thought(ids, marks, tokenizer) == opens


@each_of(
    ("pieces", "thought", "words"),
    [
        (["a", "\n", "b", "\n\n", None, "\n", "\n", "c", "\n"], "a\nb", "c\n"),
        (["a\n", None, "\n\nc"], "a", "c"),
        (["a", None, "c"], "a", "c"),
        ([None, "\nc"], "", "c"),
        (["a", "\n"], "a\n", ""),
        (["a", None], "a", ""),
        (["a", None, "b", None, "c"], "a", "b</>c"),
    ],
)
def test_ends_of_lines_beside_the_mark_belong_to_neither(
    pieces: list[str | None], thought: str, words: str
) -> None:  # fmt: skip
    parser, found = ThoughtParser(7), ["", ""]
    for i, piece in enumerate(pieces):
        mark = piece is None
        text = ("" if parser.open else "</>") if piece is None else piece
        for k, added in enumerate(parser.push(7 if mark else 1, text, last=i == len(pieces) - 1)):
            found[k] += added
    assert found == [thought, words]
    ends = pieces.index(None) + 1 if None in pieces else len(pieces)
    assert (parser.n_tokens, parser.open) == (ends, None not in pieces)


def event(token_id: int, finish: Any = None) -> TokenEvent:
    return TokenEvent(request_id="r", token=Token(id=token_id), finish=finish)


@each_of("step", [1, 2, 3, 7, 100])
@each_of("streamed", [True, False])
def test_an_answer_is_told_apart_however_its_tokens_come(
    tokenizer: BPETokenizer, marks: ThoughtMarks, step: int, streamed: bool
) -> None:
    """A character that the mark cuts is the thought's; a stop string inside the thought is none."""
    cut = tokenizer.encode("\U0001f600")[0]
    thought = [*tokenizer.encode("a STOP\n"), cut, marks.closing]
    ids = [*thought, *tokenizer.encode("\n\nx STOP y")]
    events = [event(token) for token in ids[:-1]] + [event(ids[-1], "length")]
    answer = Answer(tokenizer, SamplingRequest(stop=("STOP",)), streamed=streamed, thought_end=marks.closing)
    told = []
    for at in range(0, len(events), step):
        if answer.finish is None and (delta := answer.push(events[at : at + step])) is not None:
            told.append(delta)
    assert "".join(delta.reasoning or "" for delta in told) == "a STOP\n\ufffd"
    assert "".join(delta.text for delta in told) == "x "
    assert sum(delta.n_thought for delta in told) == len(thought)
    assert sum(delta.n_reasoning for delta in told) == len(thought) - 1
    assert answer.finish == "stop" and answer.n_tokens < len(ids)


def test_min_tokens_of_stop_strings_counts_behind_the_mark(tokenizer: BPETokenizer, marks: ThoughtMarks) -> None:
    (a,), (b,) = tokenizer.encode("a"), tokenizer.encode("b")
    ids = [a, a, marks.closing, b, b, b]
    for least, shown in ((0, ""), (1, "b"), (2, "bb"), (3, "bbb")):
        answer = Answer(tokenizer, SamplingRequest(stop=("b",), min_tokens=least), thought_end=marks.closing)
        delta = answer.push([event(token) for token in ids[:-1]] + [event(ids[-1], "length")])
        assert delta is not None and (delta.text, delta.reasoning) == (shown, "aa")


def test_words_that_hold_their_thoughts_are_told_apart() -> None:
    messages = [
        {"role": "user", "content": "<think>\nmine\n</think>\n\nx"},
        {"role": "assistant", "content": "<think>\nso\n</think>\n\nyes"},
        {"role": "assistant", "content": [{"type": "text", "text": "so\n</think>"}, {"type": "text", "text": "\nyes"}]},
        {"role": "assistant", "content": "a</think>b", "reasoning": "given"},
        {"role": "assistant", "content": "plain"},
    ]
    chat = chat_from_openai(messages)
    found = THINK.told_apart(chat).turns
    assert [turn.reasoning for turn in found] == [None, "so", "so", "given", None]
    assert [found[i].parts for i in (1, 2)] == [(Text(text="yes"),)] * 2
    assert [found[i] for i in (0, 3, 4)] == [chat.turns[i] for i in (0, 3, 4)]
