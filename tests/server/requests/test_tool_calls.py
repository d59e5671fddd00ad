"""What a request's answers are held to once the model is known, and how its calls stand in deltas."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from model.engine.messages import Token, TokenEvent
from server.requests.answer import Answer, Delta
from server.requests.model_card import ModelCard
from server.requests.request import ChatRequest
from server.requests.sampling import SamplingRequest
from server.requests.tool_calls import with_calls
from tests.server.doubles import card as card_of
from tests.server.doubles import chat_of
from tests.server.tables import each_of
from tokenization.chat.errors import ChatError
from tokenization.chat.grammar import Grammar
from tokenization.chat.tool_form import HERMES, ToolForm
from tokenization.chat.tool_offer import CallRules, Tool, ToolOffer
from tokenization.text.bpe import BPETokenizer

OFFER = ToolOffer(tools=(Tool(name="look", schema="{}", param="tools[0]"),), choice="auto")
SCHEMA = Grammar(kind="json_schema", source="{}", param="response_format")


def card(tokenizer: BPETokenizer, form: ToolForm | None) -> ModelCard:
    return replace(card_of(tokenizer), tool_form=form)


def request(**fields: Any) -> ChatRequest:
    return ChatRequest(id="r", chat=chat_of("x"), chat_param="messages", **{"tools": OFFER, **fields})


def test_answers_are_held_to_the_models_form(tokenizer: BPETokenizer) -> None:
    found = with_calls(request(), card(tokenizer, HERMES))
    assert found.tools is not None and found.tools.form == HERMES and found.grammar is not None
    assert (found.grammar.kind, found.grammar.param, found.grammar.marks) == ("tools", "tools", ())
    rules = msgspec.json.decode(found.grammar.source, type=CallRules)
    assert rules == CallRules(offer=found.tools, special={}, words=None)
    marked = ToolForm(name="x", mark="<|im_end|>", opening="", between=",", closing="")
    found = with_calls(request(grammar=SCHEMA), card(tokenizer, marked))
    assert found.grammar is not None and found.grammar.marks == (tokenizer.special["<|im_end|>"],)
    assert msgspec.json.decode(found.grammar.source, type=CallRules).words == SCHEMA


def test_beside_tools_an_answer_is_held_to_a_schema_alone(tokenizer: BPETokenizer) -> None:
    with pytest.raises(ChatError) as caught:
        with_calls(
            request(grammar=Grammar(kind="regex", source="a", param="structured_outputs.regex")),
            card(tokenizer, HERMES),
        )
    assert caught.value.param == "structured_outputs.regex"


def test_a_model_without_a_form_is_refused_elsewhere(tokenizer: BPETokenizer) -> None:
    assert with_calls(request(), card(tokenizer, None)) == request()


def whole(tokenizer: BPETokenizer, text: str, choice: Any, finish: Any, *, streamed: bool) -> list[Delta]:
    offer = msgspec.structs.replace(OFFER, choice=choice, form=HERMES)
    answer = Answer(tokenizer, SamplingRequest(), offer=offer, streamed=streamed)
    ids = [*tokenizer.encode(text), tokenizer.special["<|im_end|>"]]
    events = [TokenEvent(request_id="r", token=Token(id=i), finish=None) for i in ids[:-1]]
    events.append(TokenEvent(request_id="r", token=Token(id=ids[-1]), finish=finish))
    deltas = [answer.push([event]) for event in events]
    return [delta for delta in deltas if delta is not None]


CALL = '<tool_call>\n{"name": "look", "arguments": {"a": [1]}}\n</tool_call>'


@each_of(
    ("text", "choice", "finish", "told"),
    [
        (CALL, "auto", "stop", "tool_calls"),
        (f"words {CALL}\n{CALL}", "auto", "stop", "tool_calls"),
        (CALL, "required", "stop", "tool_calls"),
        (CALL, "named", "stop", "stop"),
        (CALL, "auto", "length", "length"),
        (CALL[:-20], "auto", "stop", "stop"),
        ("words", "auto", "stop", "stop"),
    ],
)
def test_how_an_answer_with_calls_ended(
    tokenizer: BPETokenizer, text: str, choice: Any, finish: Any, told: str
) -> None:
    (one,) = whole(tokenizer, text, choice, finish, streamed=False)
    deltas = whole(tokenizer, text, choice, finish, streamed=True)
    assert one.finish == deltas[-1].finish == told
    assert one.text == "".join(delta.text for delta in deltas)
    pieces = [piece for delta in deltas for piece in delta.calls]
    for call in one.calls:
        assert call.arguments == "".join(piece.arguments for piece in pieces if piece.index == call.index)
    assert len(one.calls) == len([piece for piece in pieces if piece.id]) == text.count("arguments")
    assert all(delta.calls == () or len({piece.index for piece in delta.calls}) == len(delta.calls) for delta in deltas)
