"""Parts of an answer that both dialects write alike: token counts and log-probabilities."""

from typing import Any

from model.engine.messages import Token
from server.requests.answer import Accepted
from tokenization.text.tokenizer import Tokenizer


def usage(accepted: Accepted, n_tokens: int) -> dict[str, Any]:
    """Token counts. The stop token is one of the completion's."""
    details = {"image_tokens": accepted.media_tokens - accepted.video_tokens - accepted.audio_tokens}
    if accepted.video_tokens:
        details["video_tokens"] = accepted.video_tokens
    if accepted.audio_tokens:
        details["audio_tokens"] = accepted.audio_tokens
    return {
        "prompt_tokens": accepted.prompt_tokens,
        "completion_tokens": n_tokens,
        "total_tokens": accepted.prompt_tokens + n_tokens,
        "prompt_tokens_details": details,
    }


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
