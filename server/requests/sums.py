"""What one body asks for, in two sums: tokens, and bytes. Each has one formula, one limit and one refusal."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from server.requests.refusal import invalid_request
from server.requests.request import ChatRequest
from tokenization.chat.parts import RawPrompt
from tokenization.text.tokenizer import Tokenizer

LISTED = 2  # what a log-probability counts: so one limit holds 64 prompts of 32,768 tokens, or 1,048,576 of these
# Bytes; what they stand for is at most so large.
CHAR = 6  # of JSON, of one character: a control character
IN_MEMORY = 4  # of a character of a stop string
TOKEN = 120  # that a token of an answer takes beside its text: its object, id and places in lists, until it is written
PROMPT_TOKEN = 24  # the same of a token of a prompt: its id, its share of a box
ENTRY = 112  # that a token in a list of log-probabilities takes beside its text and its bytes
ANSWER = 512  # beside its tokens
BODY = 16384  # beside its answers
ID = 64  # of the parameters: in a message to the engine, and there an integer and its place in a tuple


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What one body may ask for, and how many bytes of JSON a token of the vocabulary may become."""

    tokens: int
    nbytes: int
    text: int  # of a token as a part of a text
    spelled: int  # of one in a list of log-probabilities: its text and its bytes


def widest(tokenizer: Tokenizer) -> tuple[int, int]:
    """`RequestLimits.text` and `RequestLimits.spelled` of a vocabulary."""
    text = spelled = 1
    for token in map(tokenizer.token_bytes, range(tokenizer.vocab_size)):
        if CHAR * len(token) > text or (CHAR + 4) * len(token) > spelled:  # else it cannot be the widest
            # Bytes that are no whole character may become one U+FFFD each, by what stands beside them.
            written = max(len(msgspec.json.encode(token.decode("utf-8", "replace"))) - 2, _broken(token))
            text = max(text, written)
            spelled = max(spelled, written + len(msgspec.json.encode(list(token))) - 2)
    return text, spelled


def _broken(token: bytes) -> int:
    try:
        token.decode("utf-8")
    except UnicodeDecodeError:
        return 3 * len(token)
    return 0


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
    stops: int = 0  # characters of the stop strings
    ids: Mapping[str, int] = field(default_factory=dict)  # that go to the engine with each prompt, by parameter

    @property
    def tokens(self) -> int:
        """prompts + n x (answers + prompts that are scored) x (2 for each log-probability of a token, 1 where none is)

        Each prompt with each of its answers is at most the model's length.
        """
        weight = max(1, LISTED * self.listed)
        known = sum(prompt + self.n * (answer + scored) * weight for prompt, answer, scored in self._lengths())
        return known + self.n * self.supposed * weight

    def nbytes(self, limits: RequestLimits) -> int:
        """n x (texts and lists of the answers, with prompts that are shown) + prompts x (ids of parameters + n x stops)

        What stands in an answer is counted as JSON, as wide as the vocabulary allows.
        """
        # Legacy lists hold no bytes, and name a token once more among the likeliest ones.
        entry = ENTRY + (limits.text if self.legacy else limits.spelled)
        entries = self.listed + (self.legacy and self.listed > 0)
        shown = BODY
        for prompt, answer, scored in self._lengths():
            text = answer * (limits.text + TOKEN) + prompt * (limits.text * self.echoed + PROMPT_TOKEN)
            shown += self.n * (ANSWER + text + (answer + scored) * entries * entry)
        shown += self.n * CHAR * self.chars * self.echoed
        return shown + len(self.prompts) * (ID * sum(self.ids.values()) + self.n * IN_MEMORY * self.stops)

    def _lengths(self) -> list[tuple[int, int, int]]:
        """Of each prompt: its tokens, those of one of its answers at most, and its own that are scored."""
        longest = self.room if self.max_tokens is None else self.max_tokens
        return [(prompt, max(0, min(longest, self.room - prompt)), prompt * self.scored) for prompt in self.prompts]

    def _of_one_prompt(self) -> "Sums":
        """As if all were as long as the first one."""
        n = len(self.prompts)
        return replace(self, prompts=self.prompts[:1], supposed=self.supposed // n, chars=self.chars // n)

    def smaller(self) -> dict[str, "Sums"]:
        """What would be left without each of the parameters, by its name."""
        fewer: dict[str, Sums] = {
            "n": replace(self, n=1),
            "logprobs": replace(self, listed=0),
            "echo": replace(self, scored=False, supposed=0, echoed=False),
            "prompt": self._of_one_prompt(),
            "stop": replace(self, stops=0),
        }
        if self.max_tokens is not None:
            fewer["max_tokens"] = replace(self, max_tokens=1)
        return fewer | {name: replace(self, ids={**self.ids, name: 0}) for name in self.ids}


def sums_of(
    requests: Sequence[ChatRequest], room: int, lengths: Sequence[int] | None = None, bad_ids: int | None = None
) -> Sums:
    """Of all prompts of one body, which are asked alike."""
    first, sampling = requests[0], requests[0].sampling
    texts = [one.chat.text for one in requests if isinstance(one.chat, RawPrompt) and one.chat.ids is None]
    known = [len(one.chat.ids or (0,)) if isinstance(one.chat, RawPrompt) else 1 for one in requests]
    supposed = sum(min(room, len(text)) - 1 for text in texts) if first.scores_prompt and lengths is None else 0
    return Sums(
        prompts=tuple(known if lengths is None else lengths),
        room=room,
        n=sampling.n,
        max_tokens=sampling.max_tokens,
        listed=sampling.top_logprobs + 1 if sampling.logprobs else 0,
        legacy=isinstance(first.chat, RawPrompt),
        scored=first.scores_prompt,
        supposed=supposed,
        echoed=first.echoes,
        chars=sum(map(len, texts)),
        stops=sum(map(len, sampling.stop)),
        ids={
            "bad_words": _most_ids(sampling.bad_words) if bad_ids is None else bad_ids,
            "logit_bias": 2 * len(sampling.logit_bias),
            "allowed_token_ids": len(sampling.allowed_token_ids or ()),
            "stop_token_ids": len(sampling.stop_token_ids),
        },
    )


def _most_ids(words: Sequence[str]) -> int:
    """A word is spelled twice, and each of its bytes may be a token."""
    return sum(2 * (len(word.encode("utf-8", "replace")) + 2) for word in words)


def check_sums(
    requests: Sequence[ChatRequest],
    room: int,
    limits: RequestLimits,
    lengths: Sequence[int] | None = None,
    bad_ids: int | None = None,
) -> None:
    """Raise Refusal where one of the sums is above its limit; it names the field without which least would be left.

    lengths, bad_ids: tokens of the prompts and ids of the bad words, once they are known.
    """
    sums = sums_of(requests, room, lengths, bad_ids)
    _check(requests[0], sums, "tokens", lambda one: one.tokens, limits.tokens, "--max-asked-tokens")
    _check(requests[0], sums, "bytes", lambda one: one.nbytes(limits), limits.nbytes, "--max-asked-mib")


def _check(first: ChatRequest, sums: Sums, unit: str, count: Callable[[Sums], int], most: int, setting: str) -> None:
    asked = count(sums)
    if asked <= most:
        return
    left = {name: count(one) for name, one in sums.smaller().items()}
    blamed = min(left, key=lambda one: left[one])
    name = first.parameter(_written(blamed if left[blamed] < asked else "max_tokens", first))
    raise invalid_request(
        f"{name}: the body asks for up to {asked} {unit}, with {len(sums.prompts)} prompts, n {sums.n} and all its "
        f"parameters; this server takes {most} of one body ({setting})",
        name,
        "asks_too_much",
    )


def _written(name: str, first: ChatRequest) -> str:
    """How the dialect calls it: log-probabilities are a number in the older one, and a switch elsewhere."""
    older = isinstance(first.chat, RawPrompt)
    return "top_logprobs" if name == "logprobs" and not older and first.sampling.top_logprobs else name
