"""A request whose answers may call tools, for the model that answers: its form of calls, and a grammar for them."""

from dataclasses import replace

import msgspec
from msgspec import structs

from server.requests.model_card import ModelCard
from server.requests.request import ChatRequest
from tokenization.chat.errors import ChatError
from tokenization.chat.grammar import Grammar
from tokenization.chat.tool_offer import TOOLS, CallRules


def with_calls(request: ChatRequest, card: ModelCard) -> ChatRequest:
    """The request with its answers held to the model's form. Raises ChatError.

    A model without a form is refused where the prompt is made (tokenization/prepare.py).
    """
    offer, form, words = request.tools, card.tool_form, request.grammar
    if offer is None or form is None:
        return request
    if words is not None and words.kind not in ("json_object", "json_schema"):
        raise ChatError("beside tools an answer is held to a JSON schema or to nothing", words.param)
    offer, special = structs.replace(offer, form=form), form.special(card.tokenizer.special)
    rules = msgspec.json.encode(CallRules(offer=offer, special=special, words=words)).decode()
    grammar = Grammar(kind="tools", source=rules, param=TOOLS, marks=tuple(special.values()))
    return replace(request, tools=offer, grammar=grammar)
