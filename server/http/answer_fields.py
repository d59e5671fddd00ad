"""Parts of answers: token counts, what was made smaller, log-probabilities in two forms, the fingerprint."""

import hashlib
from collections.abc import Sequence
from typing import Any

from model.engine.messages import Token
from tokenization.messages import Prepared, Reduced
from tokenization.text.tokenizer import Tokenizer

LEAST_LOGPROB = -9999.0  # vLLM's


def usage(prepared: Prepared, n_tokens: int) -> dict[str, Any]:
    """Token counts. The stop token is one of the completion's; a video's own sound counts as audio.

    With `reduced_media` where a bound of the server made a picture or a video smaller: the answer may be worse for it.
    """
    counts = {"image": 0, "video": 0, "audio": 0}
    for item in prepared.media:
        counts[item.kind] += sum(length for _, length in item.spans)
    details = {f"{kind}_tokens": n for kind, n in counts.items() if n or kind == "image"}
    n_prompt = len(prepared.input_ids)
    reduced = [
        {"index": index, "param": item.param, "kind": item.kind, **reduced_json(item.reduced)}
        for index, item in enumerate(prepared.media)
        if item.reduced is not None
    ]
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_tokens,
        "total_tokens": n_prompt + n_tokens,
        "prompt_tokens_details": details,
        **({"reduced_media": reduced} if reduced else {}),
    }


def reduced_json(reduced: Reduced) -> dict[str, Any]:
    """The setting that bounds it, and the size in pixels as it is seen and as it would be without that."""
    (width, height), (wanted_width, wanted_height) = reduced.size, reduced.wanted
    sizes = {"width": width, "height": height, "wanted_width": wanted_width, "wanted_height": wanted_height}
    return {"limit": reduced.limit, **sizes}


def logprob_entries(tokens: "tuple[Token, ...] | list[Token]", tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """One entry for each sampled token. `token` is readable, `bytes` exact: [] for an id without a vocabulary entry."""
    return [
        {
            **_spelled(token.id, token.logprob, tokenizer),
            "top_logprobs": [_spelled(i, p, tokenizer) for i, p in token.top],
        }
        for token in tokens
    ]


def _spelled(token_id: int, logprob: float | None, tokenizer: Tokenizer) -> dict[str, Any]:
    spelling = tokenizer.token_bytes(token_id)
    return {"token": spelling.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(spelling)}


def legacy_logprobs(tokens: Sequence[Token], tokenizer: Tokenizer, offset: int) -> dict[str, list[Any]]:
    """Four lists with an entry for each token, as OpenAI's completions have them.

    offset: characters of the tokens before. The likeliest tokens of a place always have the token itself beside them.
    """
    spelled = [readable(token.id, tokenizer) for token in tokens]
    offsets = [offset]
    for text in spelled:
        offsets.append(offsets[-1] + len(text))
    return {
        "tokens": spelled,
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": [_likeliest(token, tokenizer) for token in tokens],
        "text_offset": offsets[:-1],
    }


def _likeliest(token: Token, tokenizer: Tokenizer) -> dict[str, float | None] | None:
    """By text; of two ids that read alike the likelier one. None where the token was not predicted."""
    if token.logprob is None:
        return None
    found: dict[str, float | None] = {}
    for token_id, logprob in (*token.top, (token.id, token.logprob)):
        found.setdefault(readable(token_id, tokenizer), _finite(logprob))
    return found


def _finite(logprob: float | None) -> float | None:
    """JSON has no infinity."""
    return None if logprob is None else max(logprob, LEAST_LOGPROB)


def readable(token_id: int, tokenizer: Tokenizer) -> str:
    """A token as text; U+FFFD for bytes that are no whole character."""
    return tokenizer.token_bytes(token_id).decode("utf-8", "replace")


def system_fingerprint(version: str, model: str, dtype: str) -> str:
    """The same as long as the server's version, the model and its arithmetic are."""
    return "fp_" + hashlib.blake2b("\0".join((version, model, dtype)).encode(), digest_size=5).hexdigest()
