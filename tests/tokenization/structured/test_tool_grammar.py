"""The grammar of an answer that may call tools, by the library that holds answers to it, over a vocabulary of bytes."""

import json
import random
from typing import Any

import llguidance
import llguidance.numpy
import msgspec
import numpy as np
import pytest

from model.families.mistral3.processor import Mistral3Processor
from tokenization.chat.dialects import chat_from_openai, with_tools
from tokenization.chat.errors import ChatError
from tokenization.chat.grammar import Grammar, GrammarKind
from tokenization.chat.tool_form import HERMES, ToolForm
from tokenization.chat.tool_offer import CallRules, ToolOffer
from tokenization.structured.tool_grammar import call_grammar
from tokenization.text.call_parser import CallParser, joined

assert Mistral3Processor.tool_form is not None
MISTRAL = Mistral3Processor.tool_form
MARK, END = 256, 257
SPECIAL = {"[TOOL_CALLS]": MARK, "<end>": END}
COLOURS = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}, "n": {"type": "integer"}},
           "required": ["colour"]}  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": "paint", "parameters": COLOURS}},
    {"type": "function", "function": {"name": "stop"}},
]


class Bytes:
    """A vocabulary of bytes, as llguidance asks for one."""

    eos_token_id, bos_token_id = END, None
    tokens = [bytes([i]) for i in range(256)] + [b"[TOOL_CALLS]", b"<end>"]
    special_token_ids = [MARK, END]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


VOCABULARY = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()))


def offered(**body: Any) -> ToolOffer:
    chat = chat_from_openai([{"role": "user", "content": "x"}])
    _, offer = with_tools(chat, {"tools": TOOLS, **body})
    assert offer is not None
    return offer


def grammar_of(form: ToolForm, special: dict[str, int], *words: Grammar, **body: Any) -> str:
    offer = msgspec.structs.replace(offered(**body), form=form)
    rules = CallRules(offer=offer, special=form.special(special), words=words[0] if words else None)
    return call_grammar(msgspec.json.encode(rules).decode())


def matcher(form: ToolForm, *words: Grammar, **body: Any) -> llguidance.LLMatcher:
    grammar = llguidance.LLMatcher.grammar_from_lark(grammar_of(form, SPECIAL, *words, **body))
    found = llguidance.LLMatcher(VOCABULARY, grammar)
    assert not found.is_error(), found.get_error()
    return found


def ids(text: str) -> list[int]:
    """A special token where its text stands."""
    first, *rest = text.split("[TOOL_CALLS]")
    return [*first.encode(), *(token for one in rest for token in (MARK, *one.encode()))]


def ends(found: llguidance.LLMatcher, text: str) -> bool | None:
    """Whether an answer may end so; None where it may not even begin so."""
    tokens = ids(text)
    if found.validate_tokens(tokens) < len(tokens):
        return None
    assert found.consume_tokens(tokens)
    return found.is_accepting()


def calls(form: ToolForm, *made: str) -> str:
    return form.mark + form.opening + form.between.join(made) + form.closing


PAINT, STOP = '{"name": "paint", "arguments": {"colour": "red", "n": 3}}', '{"name": "stop", "arguments": {}}'
WRONG = (
    '{"name": "paint", "arguments": {"colour": "green"}}', '{"name": "paint", "arguments": {}}',
    '{"name": "paint", "arguments": {"colour": "red", "x": 1}}', '{"name":"stop", "arguments": {}}',
    '{"name": "other", "arguments": {}}', '{"name": "stop", "arguments": {"a": 1}}', "words",
)  # fmt: skip


@pytest.mark.parametrize("form", [HERMES, MISTRAL])
def test_words_and_calls_by_their_tools_schemas(form: ToolForm) -> None:
    for text in (
        "",
        "plain words\n",
        "a <tool_ [TOOL_CALL] b",
        calls(form, PAINT),
        "w\n" + calls(form, PAINT, STOP, STOP),
    ):
        assert ends(matcher(form), text) is True, text
    for wrong in WRONG:
        assert ends(matcher(form), calls(form, wrong)) is None
        assert ends(matcher(form), calls(form, PAINT, wrong)) is None
    assert ends(matcher(form), form.mark + form.opening) is False
    assert ends(matcher(form), calls(form, PAINT) + " and words") is None


@pytest.mark.parametrize("form", [HERMES, MISTRAL])
def test_a_demanded_call_is_one_whatever_the_model_says(form: ToolForm) -> None:
    demanded: Any = {"tool_choice": "required"}
    assert ends(matcher(form, **demanded), "words") is None and ends(matcher(form, **demanded), "") is False
    assert ends(matcher(form, **demanded), calls(form, PAINT, STOP)) is True
    named: Any = {"tool_choice": {"type": "function", "function": {"name": "stop"}}}
    assert ends(matcher(form, **named), calls(form, STOP)) is True
    assert ends(matcher(form, **named), calls(form, PAINT)) is None
    assert ends(matcher(form, **named), calls(form, STOP, STOP)) is None
    assert ends(matcher(form, parallel_tool_calls=False), calls(form, STOP)) is True
    assert ends(matcher(form, parallel_tool_calls=False), calls(form, STOP, STOP)) is None


def test_a_mark_that_is_a_token_is_no_text() -> None:
    """The same letters drawn one by one are words, as far as nobody reads a call in them."""
    text = list(b'[TOOL_CALLS][{"no')
    assert matcher(MISTRAL).validate_tokens(text) == len(b"[TOOL_CALLS]")
    words = "a [TOOL_CALLS] b"
    assert matcher(MISTRAL).validate_tokens(list(words.encode())) == len(words)
    parser = CallParser(offered(), MISTRAL)
    assert parser.push(words) == (words, []) and not parser.n_calls
    plain = llguidance.LLMatcher.grammar_from_lark(grammar_of(MISTRAL, {}))
    found = llguidance.LLMatcher(VOCABULARY, plain)
    assert found.validate_tokens(text) == len(b'[TOOL_CALLS][{"n')


@pytest.mark.parametrize("form", [HERMES, MISTRAL])
def test_what_a_random_model_writes_is_read_as_calls(form: ToolForm) -> None:
    draw, n = random.Random(0), 0
    for choice in ("auto", "required") * 8:
        found, text = matcher(form, tool_choice=choice), ""
        mask = llguidance.numpy.allocate_token_bitmask(1, VOCABULARY.vocab_size)
        begun = form.mark + form.opening if choice == "auto" else ""
        found.consume_tokens(ids(begun))
        for _ in range(400):
            llguidance.numpy.fill_next_token_bitmask(found, mask, 0)
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[: VOCABULARY.vocab_size])
            token = int(draw.choice(allowed.tolist()))
            if token == END or found.is_stopped():
                break
            found.consume_tokens([token])
            text += "[TOOL_CALLS]" if token == MARK else chr(token)
        else:
            continue
        parser = CallParser(offered(tool_choice=choice), form)
        words, pieces = parser.push(begun + text)
        assert (words, parser.called) == ("", True)
        for call in joined(pieces):
            arguments, n = json.loads(call.arguments), n + 1
            assert arguments == {} if call.name == "stop" else arguments["colour"] in ("red", "blue")
    assert n >= 8


def form_of(kind: GrammarKind, source: str = "") -> Grammar:
    return Grammar(kind=kind, source=source, param="response_format")


def test_beside_calls_an_answer_may_be_held_to_a_schema() -> None:
    schema = form_of(
        "json_schema", json.dumps({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]})
    )
    assert ends(matcher(HERMES, schema), '{"a": 1}') is True
    assert ends(matcher(HERMES, schema), calls(HERMES, STOP)) is True
    assert ends(matcher(HERMES, schema), "words") is None
    assert ends(matcher(HERMES, form_of("json_object")), '{"b": [2]}') is True


def test_a_schema_that_cannot_be_held_is_named_by_its_tool() -> None:
    unique = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tools = [*TOOLS, {"type": "function", "function": {"name": "x", "parameters": unique}}]
    with pytest.raises(ChatError, match=r"tools\[2\].function.parameters: uniqueItems at /properties/a/uniqueItems: "):
        grammar_of(HERMES, SPECIAL, tools=tools)


def test_arguments_are_held_to_the_digit() -> None:
    """Two tools with numbers that are no doubles: each has rules of its own."""

    def tool(name: str, value: int) -> dict[str, Any]:
        schema = {"type": "object", "properties": {"id": {"const": value}}, "required": ["id"]}
        return {"type": "function", "function": {"name": name, "parameters": schema}}

    found = matcher(HERMES, tools=[tool("a", 2**60 + 1), tool("b", 2**60 + 3)])
    for name, value, fits in (("a", 1, True), ("b", 3, True), ("a", 3, None), ("b", 0, None)):
        call = calls(HERMES, f'{{"name": "{name}", "arguments": {{"id": {2**60 + value}}}}}')
        assert ends(found.deep_copy(), call) is fits, (name, value)
