"""POST /tokenize and /detokenize: a chat or a text becomes its ids and counts, and ids become text again."""

from dataclasses import dataclass
from typing import Any

from pydantic import Field

from server.http.long_texts import Raw
from server.http.reading import body_object
from server.http.responses import LazyList
from server.http.routes.answer_fields import reduced_json
from server.http.routes.completions import token_ids
from server.http.routes.native import native_chat
from server.http.routes.vllm_fields import COMPLETION_FIELDS, refuse_unsupported
from server.http.validation import BodyFields, validated
from server.requests.refusal import invalid_request
from server.requests.request import ChatRequest
from tokenization.chat.dialects import chat_from_openai, with_tools
from tokenization.chat.parts import RawPrompt
from tokenization.chat.rendering import with_rendering
from tokenization.messages import Prepared
from tokenization.text.detokenize import whole_text
from tokenization.text.tokenizer import Tokenizer


class CountBody(BodyFields):
    """What is honoured of vLLM's request for ids beside what becomes a prompt."""

    return_token_strs: bool | None = Field(None, description="`token_strs` has the text of each token.")


class CountedText(BodyFields):
    """The same beside a text, which has no template."""

    add_special_tokens: bool | None = Field(
        None, description="True unless given: what the vocabulary puts in front of every prompt."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountRequest:
    """What is counted, and whether each token is shown as its vocabulary has it."""

    request: ChatRequest
    spelled: bool = False

    @property
    def model(self) -> str | None:
        return self.request.model


@dataclass(frozen=True, slots=True, kw_only=True)
class IdsRequest:
    """Token ids of which the text is asked for."""

    model: str | None
    ids: tuple[int, ...]


def read_tokenize(raw: Raw, request_id: str) -> CountRequest:
    """The body of POST /tokenize: `messages`, `prompt`, or what /chat takes. Raises Refusal, ChatError."""
    body = body_object(raw, or_inputs=True)
    if "messages" not in body and "prompt" not in body:
        return CountRequest(request=native_chat(body, request_id))
    fields = validated(CountBody, body)
    if body.get("prompt") is not None or "messages" not in body:
        request = ChatRequest(id=request_id, chat=_text(body), chat_param="prompt", model=fields.model)
    else:
        if not isinstance(body["messages"], list):
            raise invalid_request("must be a list", "messages")
        refuse_unsupported(body)
        chat, _ = with_tools(with_rendering(chat_from_openai(body["messages"]), body), body)
        request = ChatRequest(id=request_id, chat=chat, chat_param="messages", model=fields.model)
    return CountRequest(request=request, spelled=bool(fields.return_token_strs))


def _text(body: dict[str, Any]) -> RawPrompt:
    if body.get("messages") is not None:
        raise invalid_request("prompt: stands beside messages; give one of the two", "prompt")
    if not isinstance(body["prompt"], str) or not body["prompt"]:
        raise invalid_request("prompt: must be a text that is not empty", "prompt")
    refuse_unsupported(body, COMPLETION_FIELDS)
    return RawPrompt(text=body["prompt"], opens=validated(CountedText, body).add_special_tokens is not False)


def token_counts(prepared: Prepared, max_model_len: int, tokenizer: Tokenizer | None = None) -> dict[str, Any]:
    """The answer: the prompt's ids, and how many of them each medium has, and what the server's bounds took from it.

    tokenizer: None where no entries of the vocabulary were asked for. The ids stand there twice: `tokens` is vLLM's
    name.
    """
    media = [
        {"kind": item.kind, "tokens": sum(n for _, n in item.spans)}
        | ({"reduced": reduced_json(item.reduced)} if item.reduced else {})
        for item in prepared.media
    ]
    ids = prepared.input_ids.tolist()
    return {
        "ids": ids,
        "count": len(ids),
        "media": media,
        "max_model_len": max_model_len,
        "tokens": ids,
        "token_strs": None if tokenizer is None else LazyList(lambda: map(tokenizer.entry, ids)),
    }


def read_detokenize(raw: Raw, request_id: str) -> IdsRequest:
    """The body of POST /detokenize. Raises Refusal."""
    body = body_object(raw)
    return IdsRequest(model=validated(BodyFields, body).model, ids=token_ids(body.get("tokens"), "tokens"))


def detokenized(request: IdsRequest, tokenizer: Tokenizer, vocab_size: int, max_model_len: int) -> dict[str, Any]:
    """The answer: the text that the ids spell, special tokens by their names. Raises Refusal."""
    if len(request.ids) > max_model_len:
        message = f"tokens: holds {len(request.ids)} ids; this server takes {max_model_len} at once"
        raise invalid_request(message, "tokens", "context_length_exceeded")
    if max(request.ids) >= vocab_size:
        message = f"tokens: this model has {vocab_size} token ids from 0 on, not {max(request.ids)}"
        raise invalid_request(message, "tokens")
    return {"prompt": whole_text(tokenizer, request.ids)}
