"""How much a chat may hold and how much an answer may list: refused before a worker or the engine hears of it."""

from collections.abc import Sequence

from server.requests.refusal import invalid_request
from server.requests.request import ChatRequest
from tokenization.chat.parts import Media, Prompt, RawPrompt

FEWEST_PIECES = 1024  # of the bound, however short the model's prompts are
MOST_MEDIA = 4096  # as many as --max-items may say; of these a model's window may drop some


def most_pieces(max_model_len: int) -> int:
    """Turns, parts, frames and tool calls of one chat: each costs at least a token in every template."""
    return max(FEWEST_PIECES, max_model_len)


def check_pieces(chat: Prompt, param: str, max_model_len: int) -> None:
    """Raise Refusal for a chat of more pieces than a prompt has tokens, or of more media than any server takes."""
    if isinstance(chat, RawPrompt):
        return
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


def check_logprobs(requests: Sequence[ChatRequest], most: int, max_model_len: int) -> None:
    """Raise Refusal where the answers to all prompts of one body may list more than `most` log-probabilities."""
    asked = requests[0]
    if not asked.sampling.logprobs:
        return
    n = sum(_tokens(request, max_model_len) for request in requests) * (asked.sampling.top_logprobs + 1)
    if n > most:
        name = asked.parameter("top_logprobs" if asked.sampling.max_tokens is None else "max_tokens")
        prompts = "prompts x " if len(requests) > 1 else ""
        raise invalid_request(
            f"{name}: {prompts}n x max_tokens x (top_logprobs + 1) are up to {n} log-probabilities; this server gives "
            f"{most} in one answer",
            name,
            "too_many_logprobs",
        )


def _tokens(request: ChatRequest, max_model_len: int) -> int:
    """Of which log-probabilities may be told: of all answers, and of the prompt where they are wanted."""
    sampling, prompt = request.sampling, request.chat
    answers = sampling.n * min(sampling.max_tokens or max_model_len, max_model_len)
    if not request.scores_prompt or not isinstance(prompt, RawPrompt):
        return answers
    return answers + min(len(prompt.text if prompt.ids is None else prompt.ids), max_model_len)
