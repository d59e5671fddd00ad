"""Calls of tools in answers, cut at every character: words apart, names at once, arguments as they come."""

import json
import time
from itertools import combinations
from typing import Any

import pytest

from model.families.mistral3.processor import Mistral3Processor
from tests.tables import each_of
from tokenization.chat.tool_form import HERMES, ToolForm
from tokenization.chat.tool_offer import Tool, ToolOffer
from tokenization.text.call_parser import CallParser, CallPiece, joined

assert Mistral3Processor.tool_form is not None
MISTRAL = Mistral3Processor.tool_form
FORMS = (HERMES, MISTRAL)
NAMES = ("look", "look_up", "a.b-c")
ARGUMENTS = ('{"city": "Oslo", "n": [1, {"x": null}]}', "{}", '{"t": "}</tool_call>\\"]}[TOOL_CALLS][{"}')


def parser(form: ToolForm, choice: Any = "auto") -> CallParser:
    tools = tuple(Tool(name=name, schema="{}", param="") for name in NAMES)
    return CallParser(ToolOffer(tools=tools, choice=choice), form)


def answer(form: ToolForm, *calls: tuple[str, str], words: str = "") -> str:
    made = [f'{{"name": "{name}", "arguments": {arguments}}}' for name, arguments in calls]
    return words + form.mark + form.opening + form.between.join(made) + form.closing


def read(found: CallParser, *texts: str) -> tuple[str, list[tuple[str, str]]]:
    """The words, and the name and arguments of each call."""
    words, pieces = "", list[CallPiece]()
    for text in texts:
        more, new = found.push(text)
        words += more
        pieces += new
    words += found.flush()
    whole = joined(pieces)
    assert [call.index for call in whole] == list(range(len(whole))) and all(call.name for call in whole)
    assert len({call.id for call in whole}) == len(whole)
    return words, [(call.name, call.arguments) for call in whole]


@each_of("form", FORMS)
@each_of("words", ["", "Let me look.", "a < b\n\n", "  "])
def test_calls_are_found_however_the_text_is_cut(form: ToolForm, words: str) -> None:
    calls = list(zip(NAMES, ARGUMENTS, strict=True))
    text = answer(form, *calls, words=words)
    expected = (words.rstrip(), calls)
    assert read(parser(form), text) == expected
    assert read(parser(form), *text) == expected
    for i, k in combinations(range(0, len(text), 5), 2):
        assert read(parser(form), text[:i], text[i:k], text[k:]) == expected, (i, k)
    for i in range(len(text)):
        assert read(parser(form), text[:i], text[i:]) == expected, i


@each_of("form", FORMS)
@each_of("text", ["", "plain", " two  words \n", "<tool_call", "[TOOL_CALLS", "a <tool", "{}", "\n\n"])
def test_other_texts_are_words(form: ToolForm, text: str) -> None:
    assert read(parser(form), text) == (text, []) and read(parser(form), *text) == (text, [])


@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_call_is_words_wherever_it_breaks_off(form: ToolForm) -> None:
    for broken in ('{"name": "other", "arguments": {}}', "what?", '{"arguments": {}, "name": "look"}', "[]"):
        text = f"a{form.mark}{form.opening}{broken}{form.closing}"
        assert read(parser(form), *text) == (text, [])
    found = parser(form)
    text = answer(form, ("look", "{}"))
    words, calls = read(found, *text.replace("}}", "} and so on"))
    assert calls == [("look", "{}")] and words.startswith(" and so on")


@pytest.mark.parametrize("form", FORMS)
def test_an_answer_that_is_cut_tells_what_it_has(form: ToolForm) -> None:
    text = answer(form, ("look", ARGUMENTS[0]), ("a.b-c", ARGUMENTS[1]), words="w")
    first = text.index("{", text.index("arguments")) + 1  # the first character of arguments is told
    second = text.index("{", text.index("arguments", first)) + 1
    for i in range(len(text)):
        found = parser(form, "required")
        words, calls = read(found, text[:i])
        assert len(calls) == (i >= first) + (i >= second), text[:i]
        assert words in ("w", "") and not (found.called and not calls)
    assert read(found := parser(form), text)[0] == "w" and found.called
    read(found := parser(form), text[: second + 1])
    assert found.n_calls == 2 and not found.called


def test_a_name_comes_before_its_arguments_and_these_in_pieces() -> None:
    found, text = parser(HERMES), answer(HERMES, ("look_up", ARGUMENTS[0]))
    pieces = [found.push(mark)[1] for mark in text]
    told = [piece for one in pieces for piece in one]
    assert told[0].name == "look_up" and told[0].id.startswith("call_") and told[1].arguments == "{"
    assert len(told) == 1 + len(ARGUMENTS[0]) and not any(piece.id or piece.name for piece in told[1:])
    assert json.loads("".join(piece.arguments for piece in told)) == json.loads(ARGUMENTS[0])


def test_no_two_answers_have_a_calls_id_in_common() -> None:
    """A history may hold the calls of many."""
    text = answer(HERMES, *zip(NAMES, ARGUMENTS, strict=True))
    ids = [piece.id for _ in range(20) for piece in parser(HERMES).push(text)[1] if piece.id]
    assert len(set(ids)) == len(ids) == 60


def test_an_answer_of_blanks_alone_is_not_read_anew_with_each_of_them() -> None:
    """4 MiB of them, as 32,000 tokens may be, held the server's loop for longer and longer."""
    found, blank = parser(HERMES), " " * 128
    begun = time.process_time()
    assert found.push("a") == ("a", [])
    for _ in range(32_000):
        assert found.push(blank) == ("", [])
    assert time.process_time() - begun < 1.0, "0.03 s; a quarter of it took 3.7"
    assert found.push("b")[0] == 32_000 * blank + "b"
    assert found.push(blank + answer(HERMES, ("look", "{}")))[0] == ""
    assert found.called and found.flush() == ""


def test_a_demanded_call_that_never_began_is_no_words() -> None:
    assert read(parser(HERMES, "required"), "<tool") == ("", [])
    assert read(parser(HERMES, "named"), '<tool_call>\n{"na') == ("", [])
