"""What both dialects write alike: the counts of tokens, and how a token is spelled beside its log-probability."""

from server.http.openai import CompletionSerializer
from tests.server.http.answers import DELTAS, collected
from tokenization.text.bpe import BPETokenizer


def test_usage_and_entries(tokenizer: BPETokenizer) -> None:
    whole = CompletionSerializer("i", "m", tokenizer, logprobs=True, include_usage=False).whole(collected(DELTAS))
    assert whole["usage"]["prompt_tokens"] == 10 and whole["usage"]["completion_tokens"] == 3
    assert whole["usage"]["total_tokens"] == 13 and whole["usage"]["prompt_tokens_details"] == {"image_tokens": 4}
    first, part, unknown = whole["choices"][0]["logprobs"]["content"]
    spelled = tokenizer.token_bytes(65)
    assert first["token"] == spelled.decode() and first["bytes"] == list(spelled) and len(first["top_logprobs"]) == 2
    assert part["bytes"] == list(tokenizer.token_bytes(151))
    assert unknown == {"token": "", "logprob": -3.0, "bytes": [], "top_logprobs": []}
