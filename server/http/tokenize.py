"""POST /tokenize and /detokenize: a chat or a text becomes its ids and counts, and ids become text again."""

from dataclasses import dataclass
from typing import Any

from server.http.answer_fields import readable, reduced_json
from server.http.completions import token_ids
from server.http.long_texts import Raw
from server.http.native import native_chat
from server.http.reading import body_object, model_of
from server.http.responses import LazyList
from server.http.vllm_fields import COMPLETION_FIELDS, refuse_unsupported
from server.requests.refusal import invalid_request
from server.requests.request import ChatRequest
from tokenization.chat.dialects import chat_from_openai
from tokenization.chat.parts import RawPrompt
from tokenization.chat.rendering import with_rendering
from tokenization.messages import Prepared
from tokenization.text.detokenize import whole_text
from tokenization.text.tokenizer import Tokenizer

SPELLED = "return_token_strs"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountRequest:
    """What is counted, and whether each token is shown as text."""

    request: ChatRequest
    spelled: bool = False

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def model(self) -> str | None:
        return self.request.model


@dataclass(frozen=True, slots=True, kw_only=True)
class IdsRequest:
    """Token ids of which the text is asked for."""

    id: str
    model: str | None
    ids: tuple[int, ...]


def read_tokenize(raw: Raw, request_id: str) -> CountRequest:
    """The body of POST /tokenize: `messages`, `prompt`, or what /chat takes. Raises Refusal, ChatError."""
    body = body_object(raw, or_inputs=True)
    if "messages" not in body and "prompt" not in body:
        return CountRequest(request=native_chat(body, request_id))
    model = model_of(body)
    spelled = body.get(SPELLED)
    if spelled is not None and not isinstance(spelled, bool):
        raise invalid_request(f"{SPELLED}: must be true or false", SPELLED)
    if "prompt" in body:
        request = ChatRequest(id=request_id, chat=_text(body), chat_param="prompt", model=model)
    else:
        if not isinstance(body["messages"], list):
            raise invalid_request("must be a list", "messages")
        refuse_unsupported(body)
        chat = with_rendering(chat_from_openai(body["messages"]), body)
        request = ChatRequest(id=request_id, chat=chat, chat_param="messages", model=model)
    return CountRequest(request=request, spelled=bool(spelled))


def _text(body: dict[str, Any]) -> RawPrompt:
    if "messages" in body:
        raise invalid_request("prompt: stands beside messages; give one of the two", "prompt")
    if not isinstance(body["prompt"], str) or not body["prompt"]:
        raise invalid_request("prompt: must be a text that is not empty", "prompt")
    refuse_unsupported(body, COMPLETION_FIELDS)
    opens = body.get("add_special_tokens")
    if opens is not None and not isinstance(opens, bool):
        raise invalid_request("add_special_tokens: must be true or false", "add_special_tokens")
    return RawPrompt(text=body["prompt"], opens=opens is not False)


def token_counts(prepared: Prepared, max_model_len: int, tokenizer: Tokenizer | None = None) -> dict[str, Any]:
    """The answer: the prompt's ids, and how many of them each medium has, and what the server's bounds took from it.

    tokenizer: None where no texts of the tokens were asked for. The ids stand there twice: `tokens` is vLLM's name.
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
        "token_strs": None if tokenizer is None else LazyList(lambda: (readable(i, tokenizer) for i in ids)),
    }


def read_detokenize(raw: Raw, request_id: str) -> IdsRequest:
    """The body of POST /detokenize. Raises Refusal."""
    body = body_object(raw)
    return IdsRequest(id=request_id, model=model_of(body), ids=token_ids(body.get("tokens"), "tokens"))


def detokenized(request: IdsRequest, tokenizer: Tokenizer, vocab_size: int, max_model_len: int) -> dict[str, Any]:
    """The answer: the text that the ids spell, special tokens by their names. Raises Refusal."""
    if len(request.ids) > max_model_len:
        message = f"tokens: holds {len(request.ids)} ids; this server takes {max_model_len} at once"
        raise invalid_request(message, "tokens", "context_length_exceeded")
    if max(request.ids) >= vocab_size:
        message = f"tokens: the vocabulary of this model has the ids 0 to {vocab_size - 1}, not {max(request.ids)}"
        raise invalid_request(message, "tokens")
    return {"prompt": whole_text(tokenizer, request.ids)}
