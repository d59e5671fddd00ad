"""Parts of an answer that both dialects write alike: token counts, what was made smaller, log-probabilities."""

from collections.abc import Mapping
from typing import Any

from model.engine.messages import Token
from tokenization.chat.parts import Kind
from tokenization.messages import Prepared, Reduced
from tokenization.text.tokenizer import Tokenizer


def usage(prepared: Prepared, n_tokens: int) -> dict[str, Any]:
    """Token counts. The stop token is one of the completion's; a video's own sound counts as audio.

    With `reduced_media` where a bound of the server made a picture or a video smaller: the answer may be worse for it.
    """
    counts = {"image": 0, "video": 0, "audio": 0}
    for item in prepared.media:
        counts[item.kind] += sum(length for _, length in item.spans)
    details = {f"{kind}_tokens": n for kind, n in counts.items() if n or kind == "image"}
    details["cached_tokens"] = 0  # each prompt is computed whole
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


def prompt_ids(prepared: Prepared, pads: Mapping[Kind, int]) -> list[int]:
    """The ids that the model saw: of a medium as many pads as it has tokens, without the words of shared memory."""
    ids = prepared.input_ids.copy()
    for item in prepared.media:
        for start, length in item.spans:
            ids[start : start + length] = pads[item.kind]
    found: list[int] = ids.tolist()
    return found


def logprob_entries(
    tokens: "tuple[Token, ...] | list[Token]", tokenizer: Tokenizer, *, as_ids: bool = False
) -> list[dict[str, Any]]:
    """One entry for each sampled token. `token` is readable, `bytes` exact: [] for an id without a vocabulary entry.

    With `as_ids` `token` is "token_id:" and the id.
    """
    return [
        {
            **_spelled(token.id, token.logprob, tokenizer, as_ids),
            "top_logprobs": [_spelled(i, p, tokenizer, as_ids) for i, p in token.top],
        }
        for token in tokens
    ]


def _spelled(token_id: int, logprob: float | None, tokenizer: Tokenizer, as_ids: bool) -> dict[str, Any]:
    spelling = tokenizer.token_bytes(token_id)
    token = f"token_id:{token_id}" if as_ids else spelling.decode("utf-8", "replace")
    return {"token": token, "logprob": logprob, "bytes": list(spelling)}
