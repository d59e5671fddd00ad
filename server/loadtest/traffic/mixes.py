"""What the requests of a run hold: kinds and sizes by their shares, drawn from a seed, a share of media repeated."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from server.loadtest.traffic.arrivals import TraceLine
from server.loadtest.traffic.asks import Ask, Medium

T = TypeVar("T")

KINDS = ("text", "image", "video", "audio", "demo")  # `demo`: a drawing whose answer the demo model was taught
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


@dataclass(frozen=True, slots=True)
class Shares(Generic[T]):
    """Values and their weights."""

    values: tuple[T, ...]
    weights: tuple[float, ...]

    def draw(self, rng: random.Random) -> T:
        """One value, with a chance in proportion to its weight."""
        return rng.choices(self.values, self.weights)[0] if len(self.values) > 1 else self.values[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What is asked for. A `+` joins kinds in one request: `image+audio`."""

    kinds: Shares[str]
    prompt_words: Shares[int]
    max_tokens: Shares[int]
    items: Shares[int]  # media of each kind in one request
    image_sizes: Shares[tuple[int, int]]  # width, height
    image_format: Shares[str]
    video_seconds: Shares[float]
    video_size: Shares[tuple[int, int]]
    audio_seconds: Shares[float]
    repeated: float = 0.0  # the share of media that were sent before in this run
    cancelled: float = 0.0  # the share of requests that are left on purpose
    cancel_within: float = 1.0  # seconds after the sending: when, drawn evenly


class Source(Protocol):
    """Where media come from."""

    def fresh(self, kind: str, bucket: str) -> Medium:
        """One that was not sent before, as long as there are any."""

    def known(self) -> tuple[Medium, str, str]:
        """A picture, a question and the right answer."""


class Drawing:
    """Makes the requests of a run, one after the other; the same seed makes the same ones."""

    def __init__(self, mix: Mix, source: Source, seed: int) -> None:
        self._mix = mix
        self._source = source
        self._rng = random.Random(f"mix {seed}")
        self._sent: dict[str, list[Medium]] = {}

    def make(self, index: int, line: TraceLine | None = None) -> Ask:
        """The next request; a line of a trace may say how long its prompt and its answer are."""
        mix, rng = self._mix, self._rng
        kind = mix.kinds.draw(rng)
        words, tokens = mix.prompt_words.draw(rng), mix.max_tokens.draw(rng)
        cancel = rng.uniform(0, mix.cancel_within) if rng.random() < mix.cancelled else None
        if line is not None:
            words, tokens = line.prompt_words or words, line.max_tokens or tokens
        if kind == "demo":
            picture, question, answer = self._source.known()
            return Ask(index, kind, picture.bucket, question, (picture,), tokens, expect=answer, cancel_after=cancel)
        media = tuple(self._medium(one) for one in kind.split("+") if one != "text" for _ in range(mix.items.draw(rng)))
        bucket = "+".join(dict.fromkeys(medium.bucket for medium in media)) or f"{words} words"
        return Ask(index, kind, bucket, self._prompt(words, kind), media, tokens, cancel_after=cancel)

    def _prompt(self, words: int, kind: str) -> str:
        said = " ".join(self._rng.choice(WORDS) for _ in range(words))
        return f"{said}. {ENDINGS[kind.split('+')[0]]}"

    def _medium(self, kind: str) -> Medium:
        sent = self._sent.setdefault(kind, [])
        if sent and self._rng.random() < self._mix.repeated:
            return self._rng.choice(sent)
        medium = self._source.fresh(kind, self._bucket(kind))
        sent.append(medium)
        return medium

    def _bucket(self, kind: str) -> str:
        """The size of a medium, as its bucket is called."""
        mix, rng = self._mix, self._rng
        if kind == "image":
            width, height = mix.image_sizes.draw(rng)
            return f"{width}x{height} {mix.image_format.draw(rng)}"
        if kind == "video":
            width, height = mix.video_size.draw(rng)
            return f"{mix.video_seconds.draw(rng):g} s {width}x{height}"
        return f"{mix.audio_seconds.draw(rng):g} s"


@dataclass(frozen=True, slots=True)
class Repeats:
    """How often a medium of a run was one that had been sent before."""

    media: int
    repeated: int

    @property
    def share(self) -> float:
        return self.repeated / self.media if self.media else 0.0


def repeats_of(drawn: Sequence[Sequence[Ask]], sent: Sequence[int]) -> Repeats:
    """Of the first `sent` requests of each step, which goes round and round through its own."""
    seen: set[int] = set()
    media = 0
    for asks, n in zip(drawn, sent, strict=False):
        for index in range(n):
            for medium in asks[index % len(asks)].media:
                media += 1
                seen.add(id(medium))
    return Repeats(media, media - len(seen))
