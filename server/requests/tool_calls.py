"""A request whose answers may call tools, for the model that answers: its form of calls, and a grammar for them."""

from dataclasses import replace

from msgspec import structs

from server.requests.model_card import ModelCard
from server.requests.request import ChatRequest
from tokenization.chat.tool_grammar import call_grammar


def with_calls(request: ChatRequest, card: ModelCard) -> ChatRequest:
    """The request with its answers held to the model's form. Raises ChatError.

    A model without a form is refused where the prompt is made (tokenization/prepare.py).
    """
    offer, form = request.tools, card.tool_form
    if offer is None or form is None:
        return request
    grammar = call_grammar(offer, form, card.tokenizer.special, request.grammar)
    return replace(request, tools=structs.replace(offer, form=form), grammar=grammar)
