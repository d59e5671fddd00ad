"""One job of a worker: a chat becomes ids, positions and pixels in leased memory; a text becomes ids."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from shm import encode_shape_to_int64, encode_shm_name_to_int64, write_segment
from tokenization.cancel import Check
from tokenization.chat.combining_marks import refuse_long_runs
from tokenization.chat.errors import ChatError, in_field
from tokenization.chat.parts import Boxes, Chat, Media, too_many_media
from tokenization.chat.rendering import MEDIA
from tokenization.content_key import content_key, source_digest
from tokenization.media.effort import SECONDS, check_effort, picture_effort
from tokenization.media.frame_sampling import UNBOUNDED
from tokenization.media.source import Source, fetch_source, tracks
from tokenization.messages import SHORT_SECONDS, Encode, Measured, MediaItem, Prepare, Prepared, Room, StartWorker
from tokenization.placeholders import Layout, Spans, text_only
from tokenization.processor import Measure, Processor, StageClock
from tokenization.text.tokenizer import most_characters
from tokenization.video_budget import shared
from tokenization.worker_memory import within_bound

TOO_LONG = "context_length_exceeded"  # the code of a prompt that leaves no room for an answer

_CHARACTERS = 4  # for each token of the model's length, which most texts have: a longer one is encoded in part first
_MOST_TOKENS = 4  # for each of those: /tokenize counts prompts that are longer than the model takes
SLOWER = 10.0  # how much longer loading may take than its work does on an idle core
SOUND_RATE = 16_000  # samples a second of what is heard, whatever the file's
SOUND_SECONDS = 0.1  # that loading may take for each second of a sound, which is decoded by then

# Asks the server for one lease per item and waits; raises Cancelled when the request has ended.
AskLeases = Callable[[Measured], Sequence[str]]


class NotShort(Exception):
    """These pictures take longer than a worker of short jobs may."""


def prepare(job: Prepare, start: StartWorker, processor: Processor, ask: AskLeases, check: Check) -> Prepared:
    """`check` is called again and again while media are read.

    Raises ChatError, SegmentError, NotShort, and Cancelled from `check` and `ask`.
    """
    _check_chat(job.chat, start, processor)
    preparation = _Preparation(job, start, processor, check)
    chat = preparation.render()
    preparation.fetch(chat)
    preparation.measure()
    layout = preparation.lay_out() if job.count_only else preparation.load(ask)
    return preparation.prepared(layout)


def encode(job: Encode, start: StartWorker, processor: Processor) -> Prepared:
    """A text as it stands: no template, and no special token but the vocabulary's opening. Raises ChatError."""
    clock = StageClock()
    refuse_long_runs(job.text)
    _check_text(job.text, len(job.text), start, processor)
    with clock.stage("render"):
        tokenizer = processor.tokenizer
        ids = [*(tokenizer.opening if job.opens else ()), *tokenizer.encode(job.text)]
    _check_some(ids)
    return text_only(job.request_id, ids, clock.seconds)


def write_words(input_ids: np.ndarray, spans: Spans, name: str, shape: tuple[int, ...]) -> None:
    """Put the two words of one medium into its first two placeholders."""
    first, n = spans[0]
    input_ids[first] = encode_shm_name_to_int64(name)
    input_ids[first + 1 if n > 1 else spans[1][0]] = encode_shape_to_int64(shape)


class _Preparation:
    """A chat on its way to a prompt; the methods are called in the order in which they stand."""

    def __init__(self, job: Prepare, start: StartWorker, processor: Processor, check: Check) -> None:
        self._job = job
        self._start = start
        self._processor = processor
        self._check = check
        self._clock = StageClock()
        length = start.max_model_len
        self._room = job.room or Room(tokens=length, media_tokens=length, media_bytes=UNBOUNDED)
        self._ids: list[int] = []  # with one placeholder for each medium
        self._sources: list[Source] = []  # one for each track: a video and its sound are two
        self._digests: list[bytes] = []  # of each, where keys are made
        self._measures: list[Measure] = []
        self._nbytes = self._film_bytes = 0  # of media as encoded, and of videos among them
        self._effort = 0  # units of work that loading takes

    def render(self) -> Chat:
        """The chat within the model's window."""
        with self._clock.stage("render"):
            chat = self._processor.fit(self._job.chat)
        _check_count(chat, self._start, self._processor)
        with self._clock.stage("render"):
            self._ids = self._processor.render(chat)
        _check_some(self._ids)
        return chat

    def fetch(self, chat: Chat) -> None:
        for media in chat.media:
            self._check()
            with self._clock.stage("fetch", media.kind), in_field(media.param):
                source = fetch_source(media, self._start.media, self._check)
                nbytes = len(source.data) + sum(map(len, source.frames))
                self._nbytes += nbytes
                self._film_bytes += nbytes if source.kind == "video" else 0
                found = tracks(source)
                self._sources += found
                if self._job.salt:
                    self._digests += [source_digest(source)] * len(found)

    def measure(self) -> None:
        """Raises ChatError at the first track that is too much, NotShort for a worker of short jobs.

        Too much is more than the model's length, or more work than the bytes of the media allow. Decoded sounds are
        kept, and many of them could be gigabytes. The size of a video that gives way depends on all other media: while
        these are measured, it counts with the fewest tokens that it may have.
        """
        n = len(self._ids)
        self._check_length(n)
        for source in self._sources:
            source.check()
            with self._clock.stage("measure", source.kind), in_field(source.param), within_bound():
                found = self._processor.measure(source, self._start.media)
                self._effort += _effort(source, found)
                check_effort(self._effort, self._nbytes, self._start.media, films=self._film_bytes)
            self._measures.append(found)
            n += found.n_added - found.n_tokens + found.fewest
            self._check_length(n)
        if any(measure.gives_way for measure in self._measures):
            self._measures = shared(len(self._ids), self._measures, self._room)
        if self._start.lane == "picture" and self._effort * SECONDS > SHORT_SECONDS:
            raise NotShort

    def lay_out(self) -> Layout:
        """The prompt with all placeholders. Raises ChatError for a medium that has no place for both words."""
        for source, measure in zip(self._sources, self._measures, strict=True):
            if measure.n_tokens < 2:
                small = "short" if source.kind == "audio" else "small"
                message = f"this {source.kind} is too {small} for the model: it has fewer than two tokens"
                raise ChatError(message, source.param)
        with self._clock.stage("layout"):
            return self._processor.expand(self._ids, self._measures)

    def load(self, ask: AskLeases) -> Layout:
        """Media go into leases, words into ids. After a video that decodes shorter all is laid out and leased again."""
        shorter: dict[int, np.ndarray] = {}  # kept, so that decoding once more cannot give yet another length
        while True:
            layout = self.lay_out()
            if not self._measures:
                return layout
            before = list(self._measures)
            for i, (name, measure) in enumerate(zip(self._lease(ask), before, strict=True)):
                self._check()
                if not name:  # the engine has what it would become
                    continue
                if (pixels := shorter.get(i)) is None:
                    source = self._sources[i]
                    with in_field(source.param), within_bound():
                        pixels = self._processor.load(source, measure, self._start.media, self._clock)
                if pixels.shape != measure.shape:
                    shorter[i], self._measures[i] = pixels, measure.cut(len(pixels))
                    continue
                with self._clock.stage("write", measure.kind):
                    write_segment(Path(self._start.shm_root), name, pixels)
                write_words(layout.input_ids, layout.spans[i], name, measure.shape)
            if self._measures == before:
                return layout

    def prepared(self, layout: Layout) -> Prepared:
        with self._clock.stage("layout"):
            positions, delta = self._processor.positions(layout, self._measures)
        keys = self._keys() or [b""] * len(self._measures)
        media = tuple(
            MediaItem(
                kind=measure.kind, spans=spans, grid=measure.grid, size=measure.size, seen=measure.seen,
                seconds_per_grid=measure.video.seconds_per_grid if measure.video else None,
                param=source.param, reduced=measure.reduced, key=key,
            )
            for source, measure, spans, key in zip(self._sources, self._measures, layout.spans, keys, strict=True)
        )  # fmt: skip
        return Prepared(
            request_id=self._job.request_id, input_ids=layout.input_ids, media=media, positions=positions,
            position_delta=delta, seconds=self._clock.seconds,
        )  # fmt: skip

    def _lease(self, ask: AskLeases) -> Sequence[str]:
        """A name for each track, an empty one where the engine has its embeddings."""
        rows = []
        seconds = SLOWER * SECONDS * self._effort
        for source, measure in zip(self._sources, self._measures, strict=True):
            rows.append((measure.nbytes, source.param, measure.n_tokens))
            seconds += SOUND_SECONDS * (0 if measure.sound is None else len(measure.sound)) / SOUND_RATE
        nbytes, params, n_tokens = zip(*rows, strict=True)
        measured = Measured(
            request_id=self._job.request_id, nbytes=nbytes, params=params, n_tokens=n_tokens, seconds=seconds,
            keys=self._keys(),
        )  # fmt: skip
        with self._clock.stage("lease"):
            return ask(measured)

    def _keys(self) -> tuple[bytes, ...]:
        """The content key of each track, as it is measured now; none without a salt."""
        salt, handlers = self._job.salt, self._processor.handlers
        found = zip(self._digests, self._measures, strict=True) if salt else ()
        return tuple(content_key(salt, digest, handlers[measure.kind], measure) for digest, measure in found)

    def _check_length(self, n: int) -> None:
        """Raises ChatError where `n` tokens, of the text and of what is measured so far, leave none for an answer."""
        if n < self._room.tokens:
            return
        of_media = sum(measure.fewest for measure in self._measures)
        raise ChatError(
            f"the prompt has {'' if len(self._measures) == len(self._sources) else 'at least '}{n} tokens "
            f"({n - of_media} of text, {of_media} of media); with at least one token of answer the model takes "
            f"{self._room.tokens}",
            code=TOO_LONG,
        )


def _effort(source: Source, measure: Measure) -> int:
    """Units of work that loading it takes; sounds have bounds of their own."""
    if measure.video is not None:
        return measure.video.effort
    if source.kind != "image":
        return 0
    assert measure.size is not None, "a family tells the size of each picture as it was sent"
    return picture_effort(source.data, math.prod(measure.size))


def _check_some(ids: Sequence[int]) -> None:
    if not ids:
        raise ChatError("the prompt has no tokens; the model needs at least one to continue")


def _check_chat(chat: Chat, start: StartWorker, processor: Processor) -> None:
    """The server has looked at the kinds of media (server/requests/checks.py)."""
    if chat.tools and processor.tool_form is None:
        raise ChatError("this model was taught no calls of tools; describe them in a message", "tools")
    texts: list[str] = []
    for turn in chat.turns:
        texts.append(turn.reasoning or "")
        for part in turn.parts:
            if not isinstance(part, Media):
                texts.append(part.text)
            elif part.options.use_audio and "audio_in_video" not in processor.features:
                param = f"{MEDIA}.use_audio_in_video" if chat.media_options.use_audio else part.param
                raise ChatError("this model does not hear videos: it takes no use_audio_in_video", param)
            elif part.options.max_dynamic_patch is not None and "tiles" not in processor.features:
                param = f"{MEDIA}.max_dynamic_patch" if chat.media_options.max_dynamic_patch else part.param
                raise ChatError("this model cuts no picture into tiles: it takes no max_dynamic_patch", param)
            if isinstance(part, Boxes) and "grounding" not in processor.features:
                raise ChatError("this model takes no boxes", part.param)
    _check_text("\n".join(texts), chat.characters, start, processor)


def _check_count(chat: Chat, start: StartWorker, processor: Processor) -> None:
    """Media in turns that the model's window drops do not count."""
    media, most = chat.media, start.media.max_items
    if len(media) > most:
        raise ChatError(too_many_media(len(media), most), media[most].param)
    for kind, modality in processor.modalities.items():
        if modality.most is None:
            continue
        of_kind = [medium for medium in media if medium.kind == kind]
        if len(of_kind) > modality.most:
            raise ChatError(
                f"the prompt holds {len(of_kind)} media items of kind {kind}, this model takes at most {modality.most}",
                of_kind[modality.most].param,
            )


def _check_text(text: str, characters: int, start: StartWorker, processor: Processor) -> None:
    """Refuse what cannot fit before all of it is encoded: that would take minutes, and memory by the token.

    characters: of all that is written, of which `text` is a part.
    """
    n = _CHARACTERS * start.max_model_len
    if max(characters, len(text)) <= n:
        return
    if characters > most_characters(processor.tokenizer, start.max_model_len):
        raise ChatError(
            f"the prompt holds {characters} characters of text, more than fit into the model's "
            f"{start.max_model_len} tokens",
            code=TOO_LONG,
        )
    # Longer and longer beginnings of a long text are encoded; each cut may add or lose one token.
    while n < len(text):
        found = len(processor.tokenizer.encode(text[:n]))
        if found > _MOST_TOKENS * start.max_model_len:
            raise ChatError(
                f"the first {n} characters of the prompt's text are {found} tokens, more than fit into the model's "
                f"{start.max_model_len}",
                code=TOO_LONG,
            )
        n *= 2
