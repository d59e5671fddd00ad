"""What is refused before a worker or the engine hears of it: chats, ids and parameters that this server never takes."""

from collections.abc import Collection, Mapping, Sequence

from model.engine.messages import EngineReady
from server.requests.model_card import ModelCard
from server.requests.refusal import invalid_request, listed
from server.requests.request import ChatRequest
from tokenization.chat.parts import Chat, Media, RawPrompt

FEWEST_PIECES = 1024  # of the bound, however short the model's prompts are
MOST_MEDIA = 4096  # as many as --max-items may say; of these a model's window may drop some


def most_pieces(max_model_len: int) -> int:
    """Turns, parts, frames and tool calls of one chat: each costs at least a token in every template."""
    return max(FEWEST_PIECES, max_model_len)


def check_chat(request: ChatRequest, card: ModelCard, max_model_len: int, engine: EngineReady) -> None:
    """Raise Refusal for a chat that is too large, or that holds what the model does not take."""
    prompt, param = request.chat, request.chat_param
    if isinstance(prompt, RawPrompt):
        if prompt.ids is not None:
            room_for(len(prompt.ids), max_model_len, param)
            _check_ids(prompt.ids, engine, param)
        return
    _check_pieces(prompt, param, max_model_len)
    for medium in prompt.media:  # how many may be is for the worker to say: a model's window may drop some
        if medium.kind not in card.modalities:
            taken = ", ".join(["text", *sorted(card.modalities)])
            message = f"this model does not take {medium.kind} (it takes {taken})"
            raise invalid_request(message, medium.param, "unsupported_modality")


def check_parameters(request: ChatRequest, card: ModelCard, engine: EngineReady) -> None:
    """Raise Refusal for what this model or this server cannot do."""
    sampling = request.sampling
    if sampling.n > card.max_n:
        raise invalid_request(f"at most {card.max_n} answers to one chat", request.parameter("n"))
    asked: Mapping[str, Collection[int]] = {
        "logit_bias": dict(sampling.logit_bias),
        "allowed_token_ids": sampling.allowed_token_ids or (),
        "stop_token_ids": sampling.stop_token_ids,
    }
    for name, ids in asked.items():
        if beyond := sorted(i for i in ids if i >= engine.vocab_size):
            message = f"the vocabulary of this model has the ids 0 to {engine.vocab_size - 1}, not {listed(beyond)}"
            raise invalid_request(f"{request.parameter(name)}: {message}", request.parameter(name))
    if request.grounding == "drawn" and not card.supports_grounding:
        raise invalid_request("this model's answers hold no boxes", "parameters.draw_boxes", "unsupported_parameter")


def _check_ids(ids: Sequence[int], engine: EngineReady, param: str) -> None:
    """Ids that a client names are words of the vocabulary, and none of those that stand for media. Raises Refusal."""
    largest = max(ids)
    if largest >= engine.vocab_size:
        message = f"{param}: the vocabulary of this model has the ids 0 to {engine.vocab_size - 1}, not {largest}"
        raise invalid_request(message, param)
    if reserved := sorted(set(ids).intersection(engine.media_ids)):
        raise invalid_request(f"{param}: the token id {reserved[0]} marks media; a prompt of ids is text", param)


def _check_pieces(chat: Chat, param: str, max_model_len: int) -> None:
    """Raise Refusal for a chat of more pieces than a prompt has tokens, or of more media than any server takes."""
    media = [part for turn in chat.turns for part in turn.parts if isinstance(part, Media)]
    n = sum(1 + len(turn.parts) + len(turn.tool_calls) for turn in chat.turns) + sum(len(one.frames) for one in media)
    most = most_pieces(max_model_len)
    if n > most:
        message = f"the chat has {n} turns, parts, frames and tool calls; this server takes {most}"
        raise invalid_request(message, param, "too_many_parts")
    if len(media) > MOST_MEDIA:
        message = f"the chat holds {len(media)} media items; no server takes more than {MOST_MEDIA}"
        raise invalid_request(message, media[MOST_MEDIA].param, "too_many_parts")


def room_for(n: int, max_model_len: int, param: str) -> int:
    """Tokens that a prompt of `n` leaves for its answer. Raises Refusal where it leaves none."""
    if n >= max_model_len:
        message = f"the prompt has {n} tokens; with at least one token of answer this server takes {max_model_len}"
        raise invalid_request(message, param, "context_length_exceeded")
    return max_model_len - n
