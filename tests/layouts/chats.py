"""Random conversations, as OpenAI's clients write them and as transformers' templates take them."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

WORDS = [
    "", "describe the picture", "  blanks \n", "你好，世界。", "a\n\nb 1 2 3", "🙂👩\u200d👩\u200d👧 x",
    "e\u0301 is not é", "\u3000wide", "Hello, world! don't stop", '<tool_call>{"a": 1}</tool_call>', "\t\ttabs",
]  # fmt: skip
MEDIA = {"image": "image_url", "video": "video_url", "audio": "audio_url"}


def random_messages(
    rng: Random, kinds: Sequence[str], source: Callable[[str], str] = lambda kind: "data:,x"
) -> list[dict[str, Any]]:
    """Up to three exchanges of words and media of these kinds; `source` gives each medium's URL."""
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": rng.choice(WORDS)})
    for i in range(rng.randrange(1, 4)):
        if i:
            messages.append({"role": "assistant", "content": rng.choice(WORDS)})
        if rng.random() < 0.2:
            messages.append({"role": "user", "content": rng.choice(WORDS)})
            continue
        parts: list[dict[str, Any]] = []
        for _ in range(rng.randrange(1, 5)):
            kind = rng.choice(kinds)
            if rng.random() < 0.5:
                parts.append({"type": MEDIA[kind], MEDIA[kind]: {"url": source(kind)}})
            else:
                parts.append({"type": "text", "text": rng.choice(WORDS)})
        messages.append({"role": "user", "content": parts})
    return messages


def hub_form(messages: Sequence[dict[str, Any]], *, lists: bool = False) -> list[dict[str, Any]]:
    """The same with media as templates look for them: by a type, and of a sound by a key of its own.

    lists: no content is a plain string, which some templates pass over.
    """
    return [{**message, "content": _content(message["content"], lists)} for message in messages]


def _content(content: Any, lists: bool) -> Any:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if lists else content
    return [part if part["type"] == "text" else _medium(part["type"].removesuffix("_url")) for part in content]


def _medium(kind: str) -> dict[str, str]:
    return {"type": kind, "audio_url": ""} if kind == "audio" else {"type": kind}
