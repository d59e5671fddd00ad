"""What the requests of a run hold: drawn from a seed by the shares of kinds and sizes, or read from a list."""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import cycle

import msgspec
import numpy as np

from server.loadtest.options import Options
from server.loadtest.traffic.generated import QUESTION, drawing, encoded, photo, sound, video
from server.loadtest.traffic.requests import Medium, SampleRequest, medium_of, read_folder, read_medium

Make = Callable[[np.random.Generator], bytes]  # a new medium, encoded

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

    def __init__(self, options: Options) -> None:
        """Raises ValueError where the folder of real media holds none, OSError."""
        self._options = options
        self._rng = random.Random(f"mix {options.seed}")
        self._noise = np.random.default_rng(options.seed)
        real = read_folder(options.media_dir) if options.media_dir is not None else {}
        self._real = {kind: cycle(media) for kind, media in real.items()}
        self._made: dict[str, Iterator[Medium]] = {}
        self._sent: dict[str, list[Medium]] = {}
        self._each_new = options.unique_media or options.shared_media is not None  # no two that are made are alike
        self._digests: set[bytes] = set()

    def make(self, index: int, words: int | None = None, tokens: int | None = None) -> SampleRequest:
        """The next request; words of its prompt and tokens of its answer may be given. Raises ValueError where there
        is no medium for it."""
        options, rng = self._options, self._rng
        kind = options.mix.draw(rng)
        drawn_words, drawn_tokens = options.prompt_words.draw(rng), options.max_tokens.draw(rng)
        words, tokens = words or drawn_words, tokens or drawn_tokens
        cancel = rng.uniform(0, options.cancel_within) if rng.random() < options.cancel else None
        if kind == "demo":
            medium = self._medium(kind)
            return SampleRequest(index, kind, medium.bucket, QUESTION, (medium,), tokens, medium.shows, cancel)
        kinds = (one for one in kind.split("+") if one != "text")
        media = tuple(self._medium(one) for one in kinds for _ in range(options.items.draw(rng)))
        bucket = "+".join(dict.fromkeys(medium.bucket for medium in media)) or f"{words} words"
        said = " ".join(rng.choice(WORDS) for _ in range(words))
        prompt = f"{said}. {ENDINGS[kind.split('+')[0]]}"
        return SampleRequest(index, kind, bucket, prompt, media, tokens, cancel_after=cancel)

    def _medium(self, kind: str) -> Medium:
        """Of the sizes that were asked for; as often as that was asked for, one that was sent before."""
        options, rng = self._options, self._rng
        sent = self._sent.setdefault(kind, [])
        if options.shared_media is not None:
            again = rng.randrange(options.shared_media) < len(sent)
        else:
            again = bool(sent) and kind != "demo" and rng.random() < options.repeat
        if again:
            return rng.choice(sent)
        if kind == "demo":
            picture, shows = drawing(self._noise)
            medium = medium_of("image", "drawing", "image/png", encoded(picture, "png"), shows)
        elif kind == "image":
            (width, height), name = options.image_sizes.draw(rng), options.image_format.draw(rng)
            bucket, media_type = f"{width}x{height} {name}", f"image/{name}"
            medium = self.fresh(bucket, media_type, lambda noise: encoded(photo(noise, width, height), name))
        elif kind == "video":
            (width, height), seconds = options.video_size.draw(rng), options.video_seconds.draw(rng)
            bucket = f"{seconds:g} s {width}x{height}"
            medium = self.fresh(bucket, "video/mp4", lambda noise: video(noise, seconds, width, height))
        else:
            seconds = options.audio_seconds.draw(rng)
            medium = self.fresh(f"{seconds:g} s", "audio/wav", lambda noise: sound(noise, seconds))
        if self._each_new:
            self._differs(medium)
        sent.append(medium)
        return medium

    def _differs(self, medium: Medium) -> None:
        """Raises ValueError where there is one of the same bytes."""
        digest = hashlib.sha256(medium.data).digest()
        if digest in self._digests:
            raise ValueError(f"{medium.bucket} comes twice: ask for fewer media, or for other ones in --media-dir")
        self._digests.add(digest)

    def fresh(self, bucket: str, media_type: str, make: Make) -> Medium:
        """A real one of this kind, or one that is made, and was not given before as long as there are more."""
        kind = media_type.partition("/")[0]
        if self._options.media_dir is not None:
            if kind not in self._real:
                raise ValueError(f"the folder of media holds no {kind}")
            return next(self._real[kind])
        if self._each_new:
            return medium_of(kind, bucket, media_type, make(self._noise))
        made = (medium_of(kind, bucket, media_type, make(self._noise)) for _ in range(self._options.distinct))
        return next(self._made.setdefault(f"{kind} {bucket}", cycle(made)))


class ListedRequest(msgspec.Struct):
    """A line of a list. `text` and `output_tokens` are the names of other tools for `prompt` and `max_tokens`."""

    prompt: str | None = None
    text: str | None = None
    max_tokens: int | None = None
    output_tokens: int | None = None
    expect: str | None = None  # the right answer
    media: list[str] = []  # files beside the list


class RequestList:
    """Gives the requests of a file of JSON lines in turn, so that several tools can send the same ones."""

    def __init__(self, options: Options) -> None:
        """Raises ValueError, which names file and line, and OSError."""
        path, read = options.requests_file, cache(read_medium)
        assert path is not None
        self._requests: list[SampleRequest] = []
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not text.strip():
                continue
            try:
                line = msgspec.json.decode(text, type=ListedRequest, strict=False)
                prompt = line.prompt if line.prompt is not None else line.text
                if prompt is None:
                    raise ValueError("it has no prompt")
                media = tuple(read(path.parent / name) for name in line.media)
            except (ValueError, OSError) as error:
                raise ValueError(f"{path}:{number}: no usable request ({error})") from None
            kind = "+".join(dict.fromkeys(medium.kind for medium in media)) or "text"
            tokens = line.max_tokens or line.output_tokens or options.max_tokens.values[0]
            self._requests.append(SampleRequest(0, kind, "listed", prompt, media, tokens, line.expect))
        if not self._requests:
            raise ValueError(f"{path}: holds no request")

    def make(self, index: int, words: int | None = None, tokens: int | None = None) -> SampleRequest:
        """Request number `index`, from the first again after the last; the tokens of its answer may be given."""
        request = self._requests[index % len(self._requests)]
        return replace(request, index=index, max_tokens=tokens or request.max_tokens)


def media_of(drawn: Sequence[Sequence[SampleRequest]], sent: Sequence[int]) -> tuple[int, float]:
    """How many media were sent, and the share of them that had been sent before.

    drawn: the requests of each step, which goes round and round through its own; sent: how many of them it sent.
    """
    counts = zip(drawn, sent, strict=False)
    media = [id(one) for asked, n in counts for index in range(n) for one in asked[index % len(asked)].media]
    return len(media), (len(media) - len(set(media))) / max(1, len(media))
