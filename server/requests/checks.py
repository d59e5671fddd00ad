"""What is refused before a worker or the engine hears of it: chats, ids and parameters that this server never takes.

What one body asks for is two sums, of tokens and of bytes. Each has one formula and one limit.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from model.engine.messages import EngineReady
from server.requests.model_card import CHAR, ModelCard, RequestLimits
from server.requests.refusal import Refusal, invalid_request, listed
from server.requests.request import ChatRequest
from tokenization.chat.parts import Media, RawPrompt, too_many_media

# Turns, parts, frames and tool calls of one chat: each costs at least a token in every template, so that the model's
# length bounds them; so many may be all the same, however short that is.
FEWEST_PIECES = 1024
MOST_MEDIA = 4096  # as many as --max-items may say; of these a model's window may drop some
LISTED = 2  # what a log-probability counts: so one limit holds 64 prompts of 32,768 tokens, or 1,048,576 of these
# Bytes; what they stand for is at most so large.
IN_MEMORY = 4  # of a character of a stop string
TOKEN = 120  # that a token of an answer takes beside its text: its object, id and places in lists, until it is written
PROMPT_TOKEN = 24  # the same of a token of a prompt: its id, its share of a box
ENTRY = 112  # that a token in a list of log-probabilities takes beside its text and its bytes
ANSWER = 512  # beside its tokens
BODY = 16384  # beside its answers
ID = 64  # of the parameters: in a message to the engine, and there an integer and its place in a tuple


def check_chat(request: ChatRequest, card: ModelCard, max_model_len: int, engine: EngineReady) -> None:
    """Raise Refusal for a chat that is too large, or that holds what the model does not take."""
    prompt, param = request.chat, request.chat_param
    if isinstance(prompt, RawPrompt):
        if prompt.ids is not None:
            room_for(len(prompt.ids), max_model_len, param)
            _check_ids(prompt.ids, engine, param)
        return
    n, media = 0, list[Media]()
    for turn in prompt.turns:
        n += 1 + len(turn.parts) + len(turn.tool_calls)
        for part in turn.parts:
            if isinstance(part, Media):
                n += len(part.frames)
                media.append(part)
    most = max(FEWEST_PIECES, max_model_len)
    if n > most:
        message = f"the chat has {n} turns, parts, frames and tool calls; this server takes {most}"
        raise invalid_request(message, param, "too_many_parts")
    if len(media) > MOST_MEDIA:
        message = f"the chat holds {len(media)} media items; no server takes more than {MOST_MEDIA}"
        raise invalid_request(message, media[MOST_MEDIA].param, "too_many_parts")
    for medium in media:
        if medium.kind not in card.modalities:
            taken = ", ".join(["text", *sorted(card.modalities)])
            message = f"this model does not take {medium.kind} (it takes {taken})"
            raise invalid_request(message, medium.param, "unsupported_modality")
    if card.max_items is not None and len(media) > card.max_items:
        raise invalid_request(too_many_media(len(media), card.max_items), media[card.max_items].param)


def check_thought(request: ChatRequest, thought_end: int | None) -> None:
    """Raise Refusal where thoughts are asked for and the rendered prompt opens none."""
    if request.wants_thoughts and thought_end is None:
        message = "thinking: this model begins no answer to this prompt with thoughts; leave it out"
        raise invalid_request(message, "thinking", "unsupported_parameter")


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
        if ids and max(ids) >= engine.vocab_size:
            beyond = sorted(i for i in ids if i >= engine.vocab_size)
            message = f"this model has {engine.vocab_size} token ids from 0 on, not {listed(beyond)}"
            raise invalid_request(f"{request.parameter(name)}: {message}", request.parameter(name))
    if request.grounding == "drawn" and not card.supports_grounding:
        raise invalid_request("this model's answers hold no boxes", "parameters.draw_boxes", "unsupported_parameter")


def _check_ids(ids: Sequence[int], engine: EngineReady, param: str) -> None:
    """Ids that a client names are words of the vocabulary, and none of those that stand for media. Raises Refusal."""
    largest = max(ids)
    if largest >= engine.vocab_size:
        message = f"{param}: this model has {engine.vocab_size} token ids from 0 on, not {largest}"
        raise invalid_request(message, param)
    if reserved := sorted(set(ids).intersection(engine.media_ids)):
        raise invalid_request(f"{param}: the token id {reserved[0]} marks media; a prompt of ids is text", param)


def room_for(n: int, max_model_len: int, param: str) -> int:
    """Tokens that a prompt of `n` leaves for its answer. Raises Refusal where it leaves none."""
    if n >= max_model_len:
        message = f"the prompt has {n} tokens; with at least one token of answer this server takes {max_model_len}"
        raise invalid_request(message, param, "context_length_exceeded")
    return max_model_len - n


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """The numbers of a body that count, and the two sums of them."""

    prompts: tuple[int, ...]  # tokens of each; 1 as long as nobody knows
    room: int  # tokens of one prompt with its answer
    n: int = 1
    max_tokens: int | None = None
    listed: int = 0  # log-probabilities that are asked for with each token; 0: none
    legacy: bool = False  # they stand in the lists of /v1/completions
    scored: bool = False  # with the prompts' own tokens, too
    supposed: int = 0  # further tokens of theirs, as long as nobody knows: of a text as many as characters
    echoed: bool = False  # the prompts stand in front of their answers
    chars: int = 0  # of all prompts that are texts
    lead: int = 0  # characters in front of each answer to a chat
    copies: int = 1  # of an answer's text, and two at most of its log-probabilities
    repeated: int = 0  # characters of the body that its answer repeats
    stops: int = 0  # characters of the stop strings
    ids: Mapping[str, int] = field(default_factory=dict)  # that go to the engine with each prompt, by parameter

    def counted(self, limits: RequestLimits) -> tuple[int, int]:
        """Tokens, and bytes.

        prompts + n x (answers + prompts that are scored) x (2 for each log-probability of a token, 1 where none is)
        n x (copies of texts and lists of the answers, with prompts that are shown) + what of the body is repeated
        + prompts x (ids of parameters + n x stops)

        Each prompt with each of its answers is at most the model's length. What stands in an answer is counted as JSON,
        as wide as the vocabulary allows.
        """
        weight = max(1, LISTED * self.listed)
        # Legacy lists hold no bytes, and name a token once more among the likeliest ones.
        entry = ENTRY + (limits.text if self.legacy else limits.spelled)
        entries = self.listed + (self.legacy and self.listed > 0)
        tokens = self.n * self.supposed * weight
        nbytes = BODY + self.n * CHAR * (self.chars * self.echoed + self.lead) + CHAR * self.repeated
        nbytes += len(self.prompts) * (ID * sum(self.ids.values()) + self.n * IN_MEMORY * self.stops)
        longest = self.room if self.max_tokens is None else self.max_tokens
        for prompt in self.prompts:
            answer = max(0, min(longest, self.room - prompt))
            listed = answer + prompt * self.scored
            tokens += prompt + self.n * listed * weight
            text = answer * (limits.text * self.copies + TOKEN) + prompt * (limits.text * self.echoed + PROMPT_TOKEN)
            nbytes += self.n * (ANSWER + text + listed * entries * entry * min(2, self.copies))
        return tokens, nbytes

    def smaller(self) -> dict[str, "Sums"]:
        """What would be left without each of the parameters, by its name."""
        n = len(self.prompts)
        fewer: dict[str, Sums] = {
            "n": replace(self, n=1),
            "logprobs": replace(self, listed=0),
            "echo": replace(self, scored=False, supposed=0, echoed=False, lead=0),
            "prompt": replace(self, prompts=self.prompts[:1], supposed=self.supposed // n, chars=self.chars // n),
            "stop": replace(self, stops=0),
        }
        if self.max_tokens is not None:
            fewer["max_tokens"] = replace(self, max_tokens=1)
        return fewer | {name: replace(self, ids={**self.ids, name: 0}) for name in self.ids}


def sums_of(
    requests: Sequence[ChatRequest], room: int, lengths: Sequence[int] | None = None, bad_ids: int | None = None
) -> Sums:
    """Of all prompts of one body, which are asked alike.

    lengths, bad_ids: tokens of the prompts and ids of the bad words, once they are known.
    """
    first, sampling = requests[0], requests[0].sampling
    scored = first.scores_prompt
    known: list[int] = []
    supposed = chars = 0
    for request in requests:
        chat = request.chat
        ids = chat.ids if isinstance(chat, RawPrompt) else None
        known.append(1 if ids is None else len(ids))
        if isinstance(chat, RawPrompt) and ids is None:
            chars += len(chat.text)
            supposed += min(room, len(chat.text)) - 1
    if bad_ids is None:  # a word is spelled twice, and each of its bytes may be a token
        bad_ids = 2 * len("".join(sampling.bad_words).encode("utf-8", "replace")) + 4 * len(sampling.bad_words)
    return Sums(
        prompts=tuple(known if lengths is None else lengths),
        room=room,
        n=sampling.n,
        max_tokens=sampling.max_tokens,
        listed=sampling.top_logprobs + 1 if sampling.logprobs else 0,
        legacy=isinstance(first.chat, RawPrompt),
        scored=scored,
        supposed=supposed if scored and lengths is None else 0,
        echoed=first.echoes,
        chars=chars,
        lead=len(first.lead),
        copies=first.copies,
        repeated=first.repeated,
        stops=sum(map(len, sampling.stop)),
        ids={
            "bad_words": bad_ids,
            "logit_bias": 2 * len(sampling.logit_bias),
            "allowed_token_ids": len(sampling.allowed_token_ids or ()),
            "stop_token_ids": len(sampling.stop_token_ids),
        },
    )


def check_sums(
    requests: Sequence[ChatRequest], room: int, limits: RequestLimits, lengths: Sequence[int] | None = None,
    bad_ids: int | None = None,
) -> None:  # fmt: skip
    """Raise Refusal where one of the sums is above its limit. Parameters are those of `sums_of`."""
    sums = sums_of(requests, room, lengths, bad_ids)
    tokens, nbytes = sums.counted(limits)
    if tokens > limits.tokens or nbytes > limits.nbytes:
        raise asks_too_much(requests[0], sums, limits, of_bytes=tokens <= limits.tokens)


def asks_too_much(first: ChatRequest, sums: Sums, limits: RequestLimits, *, of_bytes: bool) -> Refusal:
    """It names the field without which least would be left, as the body's dialect calls it."""
    unit, most, setting = "tokens", limits.tokens, "--max-asked-tokens"
    if of_bytes:
        unit, most, setting = "bytes", limits.nbytes, "--max-asked-mib"
    asked = sums.counted(limits)[of_bytes]
    left = {name: one.counted(limits)[of_bytes] for name, one in sums.smaller().items()}
    blamed = min(left, key=lambda one: left[one])
    if left[blamed] >= asked:
        blamed = "max_tokens"
    elif blamed == "logprobs" and not sums.legacy and first.sampling.top_logprobs:
        blamed = "top_logprobs"  # a number in the older dialect, and a switch elsewhere
    name = first.parameter(blamed)
    message = (
        f"{name}: the body asks for up to {asked} {unit}, with {len(sums.prompts)} prompts, n {sums.n} and all its "
        f"parameters; this server takes {most} of one body ({setting})"
    )
    return invalid_request(message, name, "asks_too_much")
