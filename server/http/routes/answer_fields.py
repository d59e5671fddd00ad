"""Parts of answers: token counts, what was made smaller, log-probabilities in two forms, the fingerprint."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from model.engine.messages import Token
from server.http.responses import LazyList
from server.request_context import RequestContext
from server.requests.answer import Delta
from tokenization.chat.parts import Kind
from tokenization.messages import Prepared, Reduced
from tokenization.text.call_parser import CallPiece
from tokenization.text.tokenizer import Tokenizer

LEAST_LOGPROB = -9999.0  # vLLM's


def usage(
    prepared: Prepared, n_tokens: int, context: RequestContext, *, so_far: bool = False, n_reasoning: int | None = None
) -> dict[str, Any]:
    """Token counts. The stop token is one of the completion's; a video's own sound counts as audio.

    n_reasoning: of the completion's, those of thoughts, without the marks that end them; None: it thinks none.
    With `reduced_media` where a bound of the server made a picture or a video smaller: the answer may be worse for it.
    With the seconds of its stages where the client asked for them, unless it is the usage `so_far`.
    """
    details, reduced = {"image_tokens": 0}, []
    for index, item in enumerate(prepared.media):
        for _, length in item.spans:
            details[f"{item.kind}_tokens"] = details.get(f"{item.kind}_tokens", 0) + length
        if item.reduced is not None:
            reduced.append({"index": index, "param": item.param, "kind": item.kind, **reduced_json(item.reduced)})
    found = total(len(prepared.input_ids), n_tokens, {**details, "cached_tokens": context.cached_tokens})
    if n_reasoning is not None:
        found["completion_tokens_details"] = {"reasoning_tokens": n_reasoning}
    if reduced:
        found["reduced_media"] = reduced
    if context.wants_timings and not so_far:
        found["timings"] = {name: round(seconds, 6) for name, seconds in context.timings[-1].stages.items()}
    return found


def thought_tokens(answers: Iterable[Delta]) -> int | None:
    """Tokens of thoughts in whole answers; None where they have none."""
    thoughts = [answer.n_reasoning for answer in answers if answer.n_thought]
    return sum(thoughts) if thoughts else None


def media_json(prepared: Prepared) -> list[dict[str, Any]]:
    """What each medium became, in their order: its tokens, and in pixels what the model sees of it or of each frame."""
    found = []
    for item in prepared.media:
        entry: dict[str, Any] = {"kind": item.kind, "tokens": sum(length for _, length in item.spans)}
        if item.seen is not None:
            entry["width"], entry["height"] = item.seen
        found.append(entry)
    return found


def total(n_prompt: int, n_tokens: int, details: Mapping[str, int]) -> dict[str, Any]:
    """Token counts of one or more prompts and of their answers. details: parts of the prompts."""
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_tokens,
        "total_tokens": n_prompt + n_tokens,
        "prompt_tokens_details": details,
    }


def reduced_json(reduced: Reduced) -> dict[str, Any]:
    """The setting that bounds it, and the size in pixels as it is seen and as it would be without that."""
    (width, height), (wanted_width, wanted_height) = reduced.size, reduced.wanted
    sizes = {"width": width, "height": height, "wanted_width": wanted_width, "wanted_height": wanted_height}
    return {"limit": reduced.limit, **sizes}


def call_json(call: CallPiece) -> dict[str, Any]:
    """A call of a tool, or what a stream adds to one: only its first piece names it."""
    if not call.id:
        return {"function": {"arguments": call.arguments}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def prompt_ids(prepared: Prepared, pads: Mapping[Kind, int]) -> list[int]:
    """The ids that the model saw: of a medium as many pads as it has tokens, without the words of shared memory."""
    ids = prepared.input_ids.copy()
    for item in prepared.media:
        for start, length in item.spans:
            ids[start : start + length] = pads[item.kind]
    found: list[int] = ids.tolist()
    return found


def logprob_entries(tokens: Sequence[Token], tokenizer: Tokenizer, *, as_ids: bool = False) -> LazyList:
    """One entry for each sampled token. `token` is readable, `bytes` exact: [] for an id without a vocabulary entry.

    With `as_ids` `token` is "token_id:" and the id.
    """

    def entry(token: Token) -> dict[str, Any]:
        top = [_spelled(i, p, tokenizer, as_ids) for i, p in token.top]
        return {**_spelled(token.id, token.logprob, tokenizer, as_ids), "top_logprobs": top}

    return LazyList(lambda: map(entry, tokens))


def _spelled(token_id: int, logprob: float | None, tokenizer: Tokenizer, as_ids: bool) -> dict[str, Any]:
    spelling = list(tokenizer.token_bytes(token_id))
    return {"token": readable(token_id, tokenizer, as_ids=as_ids), "logprob": logprob, "bytes": spelling}


def legacy_logprobs(
    tokens: Sequence[Token], tokenizer: Tokenizer, offset: int, *, as_ids: bool = False
) -> dict[str, LazyList]:
    """Four lists with an entry for each token, as OpenAI's completions have them.

    offset: characters of the tokens before. Before the likeliest tokens of a place stands the token itself.
    With `as_ids` a token is named "token_id:" and its id; the offsets are those of the text all the same.
    """

    def offsets() -> Iterator[int]:
        at = offset
        for token in tokens:
            yield at
            at += len(readable(token.id, tokenizer))

    return {
        "tokens": LazyList(lambda: (readable(token.id, tokenizer, as_ids=as_ids) for token in tokens)),
        "token_logprobs": LazyList(lambda: (_finite(token.logprob) for token in tokens)),
        "top_logprobs": LazyList(lambda: (_likeliest(token, tokenizer, as_ids) for token in tokens)),
        "text_offset": LazyList(offsets),
    }


def _likeliest(token: Token, tokenizer: Tokenizer, as_ids: bool) -> dict[str, float] | None:
    """By text, the token itself first; of two ids that read alike the likelier one's number. None where the token was
    not predicted.
    """
    if token.logprob is None:
        return None
    found: dict[str, float] = {}
    for token_id, logprob in ((token.id, token.logprob), *token.top):
        text, finite = readable(token_id, tokenizer, as_ids=as_ids), max(logprob, LEAST_LOGPROB)
        found[text] = max(finite, found.get(text, finite))
    return found


def _finite(logprob: float | None) -> float | None:
    """JSON has no infinity."""
    return None if logprob is None else max(logprob, LEAST_LOGPROB)


def readable(token_id: int, tokenizer: Tokenizer, *, as_ids: bool = False) -> str:
    """A token as text; U+FFFD for bytes that are no whole character. With `as_ids` "token_id:" and its id."""
    return f"token_id:{token_id}" if as_ids else tokenizer.token_bytes(token_id).decode("utf-8", "replace")


def system_fingerprint(version: str, model: str, dtype: str) -> str:
    """The same as long as the server's version, the model and its arithmetic are."""
    return "fp_" + hashlib.blake2b("\0".join((version, model, dtype)).encode(), digest_size=5).hexdigest()
