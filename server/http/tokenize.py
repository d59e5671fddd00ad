"""POST /tokenize: a chat in either dialect, and its ids and counts."""

from typing import Any

from server.http.answer_fields import reduced_json
from server.http.bodies import model_of, object_or_inputs, parsed
from server.http.native import native_chat
from server.http.vllm_fields import refuse_unsupported
from server.requests.refusal import invalid_request
from server.requests.request import ChatRequest
from tokenization.chat.dialects import chat_from_openai
from tokenization.chat.rendering import with_rendering
from tokenization.messages import Prepared


def read_tokenize(raw: bytes, request_id: str) -> ChatRequest:
    """The body of POST /tokenize, in either dialect: `messages`, or what /chat takes. Raises Refusal, ChatError."""
    body = object_or_inputs(parsed(raw))
    if "messages" not in body:
        return native_chat(body, request_id)
    model = model_of(body)
    if not isinstance(body["messages"], list):
        raise invalid_request("must be a list", "messages")
    refuse_unsupported(body)
    chat = with_rendering(chat_from_openai(body["messages"]), body)
    return ChatRequest(id=request_id, chat=chat, chat_param="messages", model=model)


def token_counts(prepared: Prepared, max_model_len: int) -> dict[str, Any]:
    """The answer: the prompt's ids, and how many of them each medium has, and what the server's bounds took from it."""
    media = [
        {"kind": item.kind, "tokens": sum(n for _, n in item.spans)}
        | ({"reduced": reduced_json(item.reduced)} if item.reduced else {})
        for item in prepared.media
    ]
    ids = prepared.input_ids.tolist()
    return {"ids": ids, "count": len(ids), "media": media, "max_model_len": max_model_len}
