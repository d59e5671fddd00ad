"""Batches of one kind of exercise: media of one size each, several questions about each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from demo import tasks
from demo.answers import Language
from demo.clips import Clip
from demo.pictures import Picture, draw_number
from demo.prompts import IGNORED, OTHER, Encoded, Example, Extent, Parts, Reader, Ref
from demo.sizes import Sizes
from demo.sounds import Sound
from demo.studio import Seen, Studio
from demo.tasks import Asked, Asker
from demo.tooling import asked_with, declare, system_text
from demo.words import Words

Mark = tuple[int, int]  # which medium of a prompt, and which of its tokens
_ENGLISH = 0.68
_TEXT_FIRST = 0.35
_CONVERSATIONS = 0.6  # of the batches of scenes
_TURNS = 4
_SHARED = 0.3  # n labels of one prompt weigh n ** -0.3 each: half way to one weight for every prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointed:
    """Which tokens of its pictures an answer is about: a side lesson of the decoder. One row for each place."""

    rows: np.ndarray  # int64 [n]: a place of [B * L] behind which the answer says what was seen
    shares: np.ndarray  # float32 [n, L]: equal shares of its prompt's places, which add up to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Prompts with answers, padded on the right, and their media."""

    name: str
    tasks: tuple[str, ...]  # of each prompt
    ids: np.ndarray  # int64 [B, L]
    labels: np.ndarray  # int64 [B, L]
    weights: np.ndarray  # float32 [B, L]: of each label; those of one prompt count less the more there are
    positions: np.ndarray  # int64 [3, B, L]
    media: dict[str, np.ndarray] = field(default_factory=dict)  # uint8 [n, patches, columns], float32 [n, frames, mels]
    extents: dict[str, Extent] = field(default_factory=dict)
    rows: dict[str, np.ndarray] = field(default_factory=dict)  # int64: where embeddings stand in [B * L]
    source: dict[str, np.ndarray] = field(default_factory=dict)  # int64: which ones
    seen: Seen | None = None
    digits: np.ndarray | None = None  # float32 [pictures, tokens, 10]: 1 where a token shows that digit
    pointed: Pointed | None = None
    heard: np.ndarray | None = None  # int64 [sounds, tokens]: 1 where a beep sounds, 2 where one begins


class Exercises:
    """Makes batches from one generator; equal seeds give equal batches."""

    def __init__(self, rng: np.random.Generator, reader: Reader, words: Words, sizes: Sizes) -> None:
        self._rng = rng
        self._reader = reader
        self._words = words
        self._studio = Studio(rng, sizes)
        self.kinds: dict[str, Callable[[], Batch]] = {
            "scenes": self.scenes_batch, "numbers": self.numbers_batch, "pairs": self.pairs_batch,
            "clips": self.clips_batch, "sounds": self.sounds_batch, "mixed": self.mixed_batch, "talk": self.talk_batch,
            "tools": self.tools_batch,
        }  # fmt: skip

    # ---- kinds of batches

    def scenes_batch(self, count: int = 26) -> Batch:
        """Pictures of things, with one question about each, or half as many with a conversation about each."""
        size, grid = self._studio.picture_size()
        talked = self._rng.random() < _CONVERSATIONS
        drawn = [self._studio.scene(size) for _ in range(count // 2 if talked else count)]
        asked = [
            [tasks.about_picture(self._asker(), picture) for _ in range(_TURNS if talked else 1)] for picture in drawn
        ]
        if talked:
            examples = [self._conversation(some, Ref("image", i)) for i, some in enumerate(asked)]
        else:
            examples = [self._about(one, [Ref("image", i)]) for i, (one,) in enumerate(asked)]
        extent = Extent(grid=grid)
        patches = np.stack([self._studio.patches(picture.image, extent) for picture in drawn])
        about = [
            [[[(0, self._studio.middle_of(thing, picture, grid)) for thing in one.things]] for one in some]
            if talked or example.task == some[0].task else []
            for example, some, picture in zip(examples, asked, drawn, strict=True)
        ]  # fmt: skip
        return self._batch(
            "scenes", examples, {"image": patches}, {"image": extent}, seen=self._studio.seen(drawn, grid), about=about
        )

    def numbers_batch(self, count: int = 20) -> Batch:
        """Printed numbers."""
        size, grid = self._studio.picture_size()
        drawn = [draw_number(self._rng, size, self._studio.digits()) for _ in range(count)]
        examples = [
            self._about(tasks.about_number(self._asker(), picture), [Ref("image", i)])
            for i, picture in enumerate(drawn)
        ]
        extent = Extent(grid=grid)
        patches = np.stack([self._studio.patches(picture.image, extent) for picture in drawn])
        shown = self._studio.read(drawn, grid)
        about = [
            [[[(0, token)] for token in self._studio.digits_of(picture, grid)]] if example.task == "number" else []
            for example, picture in zip(examples, drawn, strict=True)
        ]
        return self._batch("numbers", examples, {"image": patches}, {"image": extent}, digits=shown, about=about)

    def pairs_batch(self, count: int = 10, questions: int = 3) -> Batch:
        """Two pictures that are compared, half of the time of different sizes."""
        size, grid = self._studio.picture_size()
        other, other_grid = self._studio.picture_size() if self._rng.random() < 0.5 else (size, grid)
        drawn = [self._studio.pair(size, other) for _ in range(count)]
        examples, about = [], []
        for i, (first, second) in enumerate(drawn):
            for _ in range(questions):
                asked = tasks.about_pair(self._asker(), first, second)
                examples.append(example := self._about(asked, [Ref("image", i), Ref(OTHER, i)]))
                marks = [
                    (k, self._studio.middle_of(thing, picture, sheet))
                    for k, (picture, sheet) in enumerate(((first, grid), (second, other_grid)))
                    for thing in picture.things
                    if any(thing is one for one in asked.things)
                ]
                about.append([[marks]] if example.task == asked.task else [])
        extents = {"image": Extent(grid=grid), OTHER: Extent(grid=other_grid)}
        patches = {
            kind: np.stack([self._studio.patches(pair[k].image, extent) for pair in drawn])
            for k, (kind, extent) in enumerate(extents.items())
        }
        seen = self._studio.seen([first for first, _ in drawn], grid)
        return self._batch("pairs", examples, patches, extents, seen=seen, about=about)

    def clips_batch(self, count: int = 14, questions: int = 2) -> Batch:
        """Things that move."""
        made, patches, extent = self._studio.clips(count)
        examples = [
            self._about(tasks.about_clip(self._asker(), clip), [Ref("video", i)])
            for i, clip in enumerate(made)
            for _ in range(questions)
        ]
        return self._batch("clips", examples, {"video": patches}, {"video": extent})

    def sounds_batch(self, count: int = 28) -> Batch:
        """Beeps, tones and glides."""
        made, mel, extent = self._studio.sounds(count)
        examples = [
            self._about(tasks.about_sound(self._asker(), sound), [Ref("audio", i)]) for i, sound in enumerate(made)
        ]
        return self._batch(
            "sounds", examples, {"audio": mel}, {"audio": extent}, heard=self._studio.heard(made, extent)
        )

    def mixed_batch(self, count: int = 8, questions: int = 2) -> Batch:
        """A picture, a clip and a sound, or two of them, in one prompt; the question says which it is about."""
        size, grid = self._studio.picture_size()
        drawn = [self._studio.scene(size) for _ in range(count)]
        moving, frames, video = self._studio.clips(count)
        made, mel, audio = self._studio.sounds(count)
        examples = []
        for i in range(count):
            refs = [Ref("image", i), Ref("video", i), Ref("audio", i)]
            for _ in range(questions):
                kept = [refs[int(k)] for k in self._rng.permutation(3)[: 3 if self._rng.random() < 0.5 else 2]]
                examples.append(self._about(self._named(kept, drawn[i], moving[i], made[i]), kept))
        image = Extent(grid=grid)
        patches = np.stack([self._studio.patches(picture.image, image) for picture in drawn])
        return self._batch(
            "mixed", examples, {"image": patches, "video": frames, "audio": mel},
            {"image": image, "video": video, "audio": audio},
        )  # fmt: skip

    def talk_batch(self, count: int = 64) -> Batch:
        """Text only: small talk, what it cannot know, and questions about media that are not there."""
        makers = (tasks.small_talk, tasks.unknown, tasks.without_medium)
        chosen = self._rng.choice(3, count, p=(0.62, 0.25, 0.13))
        return self._batch("talk", [self._about(makers[int(k)](self._asker()), []) for k in chosen], {}, {})

    def tools_batch(self, count: int = 12) -> Batch:
        """Pictures beside the offer of a tool, which is to be called for some questions and not for others."""
        size, grid = self._studio.picture_size()
        drawn = [self._studio.scene(size) for _ in range(count)]
        examples = []
        for i, picture in enumerate(drawn):
            declared = declare(self._rng)
            asked = asked_with(self._asker(), declared, picture)
            parts = (asked[0].question,) if asked[0].task in ("small_talk", "unknown") and i % 2 else None
            one = self._conversation(asked, Ref("image", i), parts)
            examples.append(replace(one, system=system_text([declared.tool]), task=asked[0].task))
        extent = Extent(grid=grid)
        patches = np.stack([self._studio.patches(picture.image, extent) for picture in drawn])
        return self._batch("tools", examples, {"image": patches}, {"image": extent})

    # ---- questions

    def _asker(self, *, named: bool = False) -> Asker:
        language: Language = "en" if self._rng.random() < _ENGLISH else "zh"
        return Asker(rng=self._rng, words=self._words, language=language, named=named)

    def _named(self, kept: Sequence[Ref], picture: Picture, clip: Clip, sound: Sound) -> Asked:
        kind = kept[int(self._rng.integers(len(kept)))].kind
        asker = self._asker(named=True)
        if kind == "image":
            one = len(picture.things) == 1
            return tasks.about_picture(asker, picture, ("shape", "colour", "thing") if one else ("count",))
        return tasks.about_clip(asker, clip, ("motion",)) if kind == "video" else tasks.about_sound(asker, sound)

    def _about(self, asked: Asked, refs: Sequence[Ref]) -> Example:
        """The media before the question or behind it; now and then the question is one it cannot answer."""
        if refs and self._rng.random() < 0.04:
            asker = self._asker()
            asked = tasks.unknown(asker) if self._rng.random() < 0.6 else tasks.small_talk(asker)
        if self._rng.random() < _TEXT_FIRST:
            return Example(parts=(asked.question, *refs), answer=asked.answer, task=asked.task)
        return Example(parts=(*refs, asked.question), answer=asked.answer, task=asked.task)

    def _conversation(self, asked: Sequence[Asked], ref: Ref, parts: Parts | None = None) -> Example:
        """All questions about a picture one after the other; every answer is learnt."""
        first, *others = asked
        both = (first.question, ref) if self._rng.random() < _TEXT_FIRST else (ref, first.question)
        turns: list[tuple[Parts, str]] = [
            (parts or both, first.answer),
            *(((one.question,), one.answer) for one in others),
        ]
        return Example(parts=turns[-1][0], answer=turns[-1][1], history=tuple(turns[:-1]), task="conversation")

    # ---- together

    def _batch(
        self, name: str, examples: Sequence[Example], media: dict[str, np.ndarray], extents: dict[str, Extent],
        seen: Seen | None = None, digits: np.ndarray | None = None, heard: np.ndarray | None = None,
        about: Sequence[Sequence[Sequence[Sequence[Mark]]]] = (),
    ) -> Batch:  # fmt: skip
        """Pad to one length and note where each embedding goes.

        `about`: for each example, each of its answers and each place where that turns to a picture, what it shows; the
        last stands for all further places.
        """
        encoded = [self._reader.encode(example, extents) for example in examples]
        length = max(len(one.ids) for one in encoded)
        ids = np.zeros((len(encoded), length), np.int64)
        labels = np.full((len(encoded), length), IGNORED)
        weights = np.zeros((len(encoded), length), np.float32)
        positions = np.zeros((3, len(encoded), length), np.int64)
        rows: dict[str, list[np.ndarray]] = {kind: [] for kind in media}
        source: dict[str, list[np.ndarray]] = {kind: [] for kind in media}
        for i, one in enumerate(encoded):
            n = len(one.ids)
            ids[i, :n], labels[i, :n], positions[:, i, :n] = one.ids, one.labels, one.positions
            learnt = one.labels != IGNORED
            weights[i, :n][learnt] = learnt.sum() ** -_SHARED
            for ref, start, count in one.places:
                rows[ref.kind].append(i * length + start + np.arange(count))
                source[ref.kind].append(ref.number * count + np.arange(count))
        return Batch(
            name=name, tasks=tuple(example.task for example in examples), ids=ids, labels=labels, weights=weights,
            positions=positions, media={kind: array for kind, array in media.items() if rows[kind]},
            extents=extents, rows={kind: np.concatenate(found) for kind, found in rows.items() if found},
            source={kind: np.concatenate(found) for kind, found in source.items() if found}, seen=seen,
            digits=digits, heard=heard, pointed=_pointed(encoded, about, length),
        )  # fmt: skip


def _pointed(
    encoded: Sequence[Encoded], about: Sequence[Sequence[Sequence[Sequence[Mark]]]], length: int
) -> Pointed | None:
    """Nothing where no answer is about a token."""
    found = [
        (i * length + place, [one.places[medium][1] + token for medium, token in marks])
        for i, (one, answers) in enumerate(zip(encoded, about, strict=False))
        for places, steps in zip(one.turning, answers, strict=False)
        for k, place in enumerate(places)
        if (marks := steps[min(k, len(steps) - 1)])
    ]
    if not found:
        return None
    shares = np.zeros((len(found), length), np.float32)
    for share, (_, tokens) in zip(shares, found, strict=True):
        np.add.at(share, tokens, 1 / len(tokens))
    return Pointed(rows=np.array([row for row, _ in found]), shares=shares)
