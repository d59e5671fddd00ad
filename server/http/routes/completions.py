"""POST /v1/completions: prompts without a template, continued; OpenAI's older form, as vLLM writes it."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from model.engine.messages import Token
from server.http.long_texts import Raw
from server.http.reading import body_object
from server.http.responses import LazyList, data
from server.http.routes.answer_fields import legacy_logprobs, readable, total
from server.http.routes.chat_completions import StreamOptions, read_options
from server.http.routes.structured import FORMS, read_grammar
from server.http.routes.vllm_fields import COMPLETION_FIELDS, check_metadata, refuse_unsupported, tell_misspelt
from server.http.validation import BodyFields, validated
from server.requests.answer import Delta
from server.requests.model_card import ModelCard
from server.requests.refusal import invalid_request
from server.requests.request import ChatRequest
from server.requests.sampling import INT32_MAX, MAX_LOGPROBS, SamplingRequest
from tokenization.chat.parts import RawPrompt
from tokenization.messages import Prepared
from tokenization.text.detokenize import whole_text

MAX_PROMPTS = 64  # each is a request of its own, with a place of its own
SHORT = 16  # max_tokens where a body names none, as OpenAI and vLLM have it


class TextBody(BodyFields):
    """What is honoured of OpenAI's completion request."""

    prompt: Any = None
    echo: bool | None = Field(
        None, description="The prompt stands in front of each answer; with `max_tokens` of 0 it is the whole answer."
    )
    add_special_tokens: bool | None = Field(
        None, description="True unless given: what the vocabulary puts in front of every prompt, such as `<s>`."
    )
    stream: bool | None = Field(None, description="The answer is server-sent events.")
    stream_options: StreamOptions | None = Field(None, description="Needs `stream`.")
    return_token_ids: bool | None = Field(None, description="The ids of prompt and answers stand beside the texts.")
    return_tokens_as_token_ids: bool | None = Field(
        None, description="A token in `logprobs` is written `token_id:` and its id."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """One body: a request for each of its prompts, and how the answers are written."""

    id: str
    model: str | None
    requests: tuple[ChatRequest, ...]
    stream: bool = False

    @property
    def prompt_only(self) -> bool:
        return self.requests[0].prompt_only


def read_completions(raw: Raw, request_id: str) -> TextRequest:
    """The body of POST /v1/completions. Raises Refusal."""
    found = body_object(raw)
    prompt_only = _is_int(found.get("max_tokens")) and found["max_tokens"] == 0 and found.get("echo") is True
    found = _chat_names({**found, "max_tokens": 1} if prompt_only else found)
    refuse_unsupported(found, COMPLETION_FIELDS)
    check_metadata(found)
    tell_misspelt(found, request_id)
    body = validated(TextBody, found)
    longest = SHORT if found.get("max_tokens") is None else found["max_tokens"]
    sampling = validated(SamplingRequest, {**found, "max_tokens": longest})
    options = read_options(found, body.stream_options)
    prompts = read_prompts(body.prompt, opens=body.add_special_tokens is not False)
    one = len(prompts) == 1
    grammar = read_grammar(found) if found.keys() & FORMS else None
    requests = tuple(
        ChatRequest(
            id=request_id if one else f"{request_id}-{i}",
            chat=prompt,
            chat_param="prompt" if one else f"prompt[{i}]",
            model=body.model,
            sampling=sampling,
            stream=bool(body.stream),
            include_usage=bool(options.include_usage),
            usage_so_far=options.usage_so_far,
            token_ids=bool(body.return_token_ids),
            tokens_as_ids=bool(body.return_tokens_as_token_ids),
            echoes=bool(body.echo),
            prompt_only=prompt_only,
            cache_salt=body.cache_salt or "",
            grammar=grammar,
        )
        for i, prompt in enumerate(prompts)
    )
    return TextRequest(id=request_id, model=body.model, requests=requests, stream=bool(body.stream))


def _chat_names(found: Mapping[str, Any]) -> dict[str, Any]:
    """The body with `logprobs`, which is a number here, under the names that the chat routes have. Raises Refusal."""
    body = dict(found)
    if body.pop("top_logprobs", None) is not None:
        raise invalid_request("top_logprobs: here logprobs itself is the number", "top_logprobs", "unknown_parameter")
    if body.get("best_of") is not None and body["best_of"] == body.get("n"):
        del body["best_of"]  # the best n of n
    width = body.pop("logprobs", None)
    if width is None:
        return body
    if not _is_int(width) or not 0 <= width <= MAX_LOGPROBS:
        raise invalid_request(f"logprobs: must be a whole number from 0 to {MAX_LOGPROBS}", "logprobs")
    return {**body, "logprobs": True, "top_logprobs": width}


def read_prompts(value: Any, *, opens: bool = True) -> list[RawPrompt]:
    """A text, a list of texts, a list of ids, or a list of such lists. Raises Refusal.

    opens: what the vocabulary puts in front of every prompt stands before each text.
    """
    if isinstance(value, str) or (isinstance(value, list) and value and _is_int(value[0])):
        return [_prompt(value, "prompt", opens)]
    if not isinstance(value, list) or not value:
        raise invalid_request(
            "prompt: must be a text, a list of texts, a list of token ids or lists of those", "prompt"
        )
    if len(value) > MAX_PROMPTS:
        raise invalid_request(f"prompt: holds {len(value)} prompts; at most {MAX_PROMPTS} are taken", "prompt")
    return [_prompt(entry, f"prompt[{i}]", opens) for i, entry in enumerate(value)]


def _prompt(value: Any, param: str, opens: bool) -> RawPrompt:
    if isinstance(value, str):
        if not value:
            raise invalid_request(f"{param}: is empty; the model needs at least one token to continue", param)
        return RawPrompt(text=value, opens=opens)
    return RawPrompt(ids=token_ids(value, param))


def token_ids(value: Any, param: str) -> tuple[int, ...]:
    """At least one id. Raises Refusal; what the vocabulary holds is not known here."""
    if not isinstance(value, list) or not value:
        raise invalid_request(f"{param}: must be a list of token ids that is not empty", param)
    if set(map(type, value)) == {int} and 0 <= min(value) <= max(value) <= INT32_MAX:  # in C: there may be many
        return tuple(value)
    for i, entry in enumerate(value):
        if not _is_int(entry) or not 0 <= entry <= INT32_MAX:
            raise invalid_request(f"{param}[{i}]: must be a token id, 0 or more", f"{param}[{i}]")
    return tuple(value)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class TextSerializer:
    """POST /v1/completions. The choices of prompt i are n i to n i + n - 1."""

    def __init__(self, request: TextRequest, card: ModelCard, *, fingerprint: str) -> None:
        self._request = request
        self._asked = request.requests[0]  # all are asked alike
        self._tokenizer = card.tokenizer
        self._n = self._asked.sampling.n
        self._logprobs = self._asked.sampling.logprobs
        self._every_token = self._logprobs or self._asked.token_ids  # is shown, also without a text
        self._head = {
            "id": f"cmpl-{request.id}", "object": "text_completion", "created": int(time.time()), "model": card.name,
            "system_fingerprint": fingerprint,
        }  # fmt: skip
        self._prompts: Sequence[Prepared] = ()
        self._scored: dict[int, tuple[tuple[Token, ...], int]] = {}  # by prompt: its tokens, and their characters
        self._lengths: dict[int, int] = {}  # by index of a begun choice: characters of its tokens so far
        self._n_tokens: Counter[int] = Counter()  # by index of a choice: of what a stream has brought

    def accepted(self, prompts: Sequence[Prepared]) -> None:
        """Called once, before anything is written: all prompts, in their order."""
        self._prompts = prompts

    def whole(self, prepared: Prepared, answers: Sequence[Delta], n_tokens: int) -> dict[str, Any]:
        choices = LazyList(lambda: (self._choice(answer) for answer in answers))
        counts = self._usage(0 if self._request.prompt_only else n_tokens)
        return {**self._head, "choices": choices, "usage": counts}

    def event(self, prepared: Prepared, delta: Delta) -> bytes | dict[str, Any]:
        begins = delta.index not in self._lengths  # told even without text: a client's clock stops at the first token
        self._n_tokens[delta.index] += 0 if self._request.prompt_only else len(delta.tokens)
        if not (delta.text or delta.finish or begins or self._every_token):
            return b""
        choice = self._choice(delta)
        chunk: dict[str, Any] = {**self._head, "choices": [choice]}
        if self._asked.include_usage:
            chunk["usage"] = self._usage_of(delta.index) if self._asked.usage_so_far else None
        if not (begins and self._asked.scores_prompt):
            return data(chunk)
        return {**chunk, "choices": LazyList(lambda: [choice])}  # the prompt's log-probabilities may be very many

    def closing(self, prepared: Prepared, n_tokens: int) -> bytes:
        if not self._asked.include_usage:
            return b""
        return data({**self._head, "choices": [], "usage": self._usage(self._n_tokens.total())})

    def _choice(self, delta: Delta) -> dict[str, Any]:
        """A whole answer, or what a delta adds to one; where echo is asked for, the prompt stands before the first."""
        text, own = ("", ()) if self._request.prompt_only else (delta.text, delta.tokens)
        ids = self._ids(delta.index, own) if self._asked.token_ids else {}
        tokens, n_before = own, 0
        if self._asked.echoes and delta.index not in self._lengths:
            prompt = self._request.requests[delta.index // self._n].chat
            assert isinstance(prompt, RawPrompt)
            text = (prompt.text if prompt.ids is None else whole_text(self._tokenizer, prompt.ids)) + text
            if self._logprobs:
                before, n_before = self._prompt_tokens(delta)
                tokens = (*before, *own)
        logprobs = self._logprobs_of(delta.index, tokens, n_before + self._characters(own))
        return {"index": delta.index, "text": text, "logprobs": logprobs, "finish_reason": delta.finish, **ids}

    def _logprobs_of(self, index: int, tokens: Sequence[Token], length: int) -> dict[str, LazyList] | None:
        """Of what lengthens a choice by so many characters, which has begun from here on."""
        offset = self._lengths.setdefault(index, 0)
        if not self._logprobs:
            return None
        self._lengths[index] += length
        return legacy_logprobs(tokens, self._tokenizer, offset, as_ids=self._asked.tokens_as_ids)

    def _ids(self, index: int, tokens: Sequence[Token]) -> dict[str, list[int]]:
        """Of the answer, and once for each choice of its prompt."""
        ids = {"token_ids": [token.id for token in tokens]}
        if index not in self._lengths:
            ids["prompt_token_ids"] = self._prompts[index // self._n].input_ids.tolist()
        return ids

    def _characters(self, tokens: Sequence[Token]) -> int:
        return sum(len(readable(token.id, self._tokenizer)) for token in tokens) if self._logprobs else 0

    def _prompt_tokens(self, delta: Delta) -> tuple[tuple[Token, ...], int]:
        """Of the prompt of a choice that begins, and their characters; its first answer brings them.

        Nothing predicts the first token.
        """
        prompt = delta.index // self._n
        if prompt not in self._scored:
            tokens = (Token(id=int(self._prompts[prompt].input_ids[0])), *delta.prompt)
            self._scored[prompt] = tokens, self._characters(tokens)
        return self._scored[prompt]

    def _usage_of(self, index: int) -> dict[str, Any]:
        """Of one choice and its own prompt, as vLLM has it in chunks; the last one has the sums of all."""
        prompt = index // self._n
        details = {"cached_tokens": self._asked.context.timings[prompt].n_cached}
        return total(len(self._prompts[prompt].input_ids), self._n_tokens[index], details)

    def _usage(self, n_tokens: int) -> dict[str, Any]:
        details = {"cached_tokens": self._asked.context.cached_tokens}
        return total(sum(len(prompt.input_ids) for prompt in self._prompts), n_tokens, details)
