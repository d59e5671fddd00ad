"""What the requests of a run hold: kinds and sizes by their shares, drawn from a seed, a share of media repeated."""

import random
from collections.abc import Sequence

from server.loadtest.options import Options
from server.loadtest.traffic.arrivals import TraceLine
from server.loadtest.traffic.library import MediaLibrary
from server.loadtest.traffic.requests import Medium, SampleRequest

# Short words, about a token each; a prompt is as many of them as asked for, and never the same twice.
WORDS = (
    "harbour", "morning", "ferry", "water", "light", "people", "street", "window", "paper", "garden", "table", "river",
    "music", "winter", "summer", "island", "bridge", "letter", "market", "evening", "stone", "cloud", "train", "story",
    "question", "number", "colour", "corner", "picture", "journey", "village", "mountain", "forest", "candle",
    "kitchen", "doctor", "teacher", "farmer", "sailor", "painter", "silver", "golden", "quiet", "early", "distant",
)  # fmt: skip
ENDINGS = {
    "text": "What do these words have in common?",
    "image": "Describe what you see.",
    "video": "Describe what happens.",
    "audio": "Describe what you hear.",
}


class SyntheticRequests:
    """Makes the requests of a run, one after the other; the same seed makes the same ones."""

    def __init__(self, options: Options, library: MediaLibrary) -> None:
        self._options = options
        self._library = library
        self._rng = random.Random(f"mix {options.seed}")
        self._sent: dict[str, list[Medium]] = {}

    def make(self, index: int, line: TraceLine | None = None) -> SampleRequest:
        """The next request; a line of a trace may say how long its prompt and its answer are."""
        options, rng = self._options, self._rng
        kind = options.mix.draw(rng)
        words, tokens = options.prompt_words.draw(rng), options.max_tokens.draw(rng)
        cancel = rng.uniform(0, options.cancel_within) if rng.random() < options.cancel else None
        if line is not None:
            words, tokens = line.prompt_words or words, line.max_tokens or tokens
        media: tuple[Medium, ...]
        if kind == "demo":
            picture, prompt, answer = self._library.known()
            media, bucket = (picture,), picture.bucket
        else:
            kinds = (one for one in kind.split("+") if one != "text")
            media = tuple(self._medium(one) for one in kinds for _ in range(options.items.draw(rng)))
            bucket = "+".join(dict.fromkeys(medium.bucket for medium in media)) or f"{words} words"
            prompt, answer = self._prompt(words, kind), None
        return SampleRequest(index, kind, bucket, prompt, media, tokens, expect=answer, cancel_after=cancel)

    def _prompt(self, words: int, kind: str) -> str:
        said = " ".join(self._rng.choice(WORDS) for _ in range(words))
        return f"{said}. {ENDINGS[kind.split('+')[0]]}"

    def _medium(self, kind: str) -> Medium:
        sent = self._sent.setdefault(kind, [])
        if sent and self._rng.random() < self._options.repeat:
            return self._rng.choice(sent)
        medium = self._library.fresh(kind, self._bucket(kind))
        sent.append(medium)
        return medium

    def _bucket(self, kind: str) -> str:
        """The size of a medium, as its bucket is called."""
        options, rng = self._options, self._rng
        if kind == "image":
            width, height = options.image_sizes.draw(rng)
            return f"{width}x{height} {options.image_format.draw(rng)}"
        if kind == "video":
            width, height = options.video_size.draw(rng)
            return f"{options.video_seconds.draw(rng):g} s {width}x{height}"
        return f"{options.audio_seconds.draw(rng):g} s"


def media_of(drawn: Sequence[Sequence[SampleRequest]], sent: Sequence[int]) -> tuple[int, float]:
    """How many media were sent, and the share of them that had been sent before.

    drawn: the requests of each step, which goes round and round through its own; sent: how many of them it sent.
    """
    counts = zip(drawn, sent, strict=False)
    media = [id(one) for asked, n in counts for index in range(n) for one in asked[index % len(asked)].media]
    return len(media), (len(media) - len(set(media))) / max(1, len(media))
