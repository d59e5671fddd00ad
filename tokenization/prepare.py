"""One job of a worker: a chat becomes ids, positions and pixels in leased memory; a text becomes ids."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shm import encode_shape_to_int64, encode_shm_name_to_int64, write_segment
from tokenization.cancel import Check
from tokenization.chat.errors import ChatError
from tokenization.chat.marks import refuse_long_runs
from tokenization.chat.parts import Boxes, Chat, Text
from tokenization.chat.rendering import MEDIA
from tokenization.media.effort import SECONDS, EffortBudget, picture_effort
from tokenization.media.frame_sampling import UNBOUNDED
from tokenization.media.source import Source, fetch_source, tracks
from tokenization.messages import SHORT_SECONDS, Encode, Measured, MediaItem, Prepare, Prepared, Room, StartWorker
from tokenization.pads import text_only
from tokenization.processor import Layout, Measure, Processor, Spans, StageClock
from tokenization.video_budget import gives_way, least, shared
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
    """These pictures take longer than what is left to this worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    ids: list[int]  # with one pad for each medium
    sources: tuple[Source, ...]  # one for each track: a video and its sound are two
    measures: tuple[Measure, ...]
    layout: Layout
    positions: np.ndarray  # int32 [3, n]
    delta: int
    effort: int  # units of work that loading takes

    @property
    def seconds(self) -> float:
        """That loading may take."""
        sounds = sum(len(measure.sound) for measure in self.measures if measure.sound is not None)
        return SLOWER * SECONDS * self.effort + SOUND_SECONDS * sounds / SOUND_RATE


def prepare(job: Prepare, start: StartWorker, processor: Processor, ask: AskLeases, check: Check) -> Prepared:
    """`check` is called again and again while media are read.

    Raises ChatError, SegmentError, NotShort, and Cancelled from `check` and `ask`.
    """
    clock = StageClock()
    _check_media(job.chat, processor)
    _check_text(job.chat, start, processor)
    with clock.stage("render"):
        chat = processor.fit(job.chat)
    _check_count(chat, start, processor)
    draft = _draft(chat, _room(job, start), start, processor, check, clock)
    if draft.measures and not job.count_only:
        draft = _fill(draft, job.request_id, start, processor, ask, check, clock)
    media = tuple(
        MediaItem(
            kind=measure.kind, spans=spans, grid=measure.grid, size=measure.size,
            seconds_per_grid=measure.video.seconds_per_grid if measure.video else None,
            param=source.param, reduced=measure.reduced,
        )
        for source, measure, spans in zip(draft.sources, draft.measures, draft.layout.spans, strict=True)
    )  # fmt: skip
    return Prepared(
        request_id=job.request_id,
        input_ids=draft.layout.input_ids,
        media=media,
        positions=draft.positions,
        position_delta=draft.delta,
        seconds=clock.seconds,
    )


def encode(job: Encode, start: StartWorker, processor: Processor) -> Prepared:
    """A text as it stands: no template, and no special token but the vocabulary's opening. Raises ChatError."""
    clock = StageClock()
    _check_characters(len(job.text), start, processor)
    refuse_long_runs(job.text)
    _check_beginning(job.text, start, processor)
    with clock.stage("render"):
        tokenizer = processor.tokenizer
        ids = [*(tokenizer.opening if job.opens else ()), *tokenizer.encode(job.text)]
    _check_some(ids)
    return text_only(job.request_id, ids, clock.seconds)


def write_words(input_ids: np.ndarray, spans: Spans, name: str, shape: tuple[int, ...]) -> None:
    """Put the two words of one medium into its first two pads."""
    first, second = list(_places(spans, 2))
    input_ids[first] = encode_shm_name_to_int64(name)
    input_ids[second] = encode_shape_to_int64(shape)


def _room(job: Prepare, start: StartWorker) -> Room:
    """What is known of it here, where the server does not say."""
    length = start.max_model_len
    return job.room or Room(tokens=length, media_tokens=length, media_bytes=UNBOUNDED)


def _draft(chat: Chat, room: Room, start: StartWorker, processor: Processor, check: Check, clock: StageClock) -> _Draft:
    limits = start.media
    with clock.stage("render"):
        ids = processor.render(chat)
    _check_some(ids)
    sources: list[Source] = []
    for media in chat.media:
        check()
        with clock.stage("fetch", media.kind):
            sources += tracks(fetch_source(media, limits, check))
    nbytes = [(source.kind, source.nbytes) for source in sources if not source.of_video]
    films = sum(n for kind, n in nbytes if kind == "video")
    effort = EffortBudget.of(sum(n for _, n in nbytes), start.media, films=films)
    measures = _measure(len(ids), sources, room, start, processor, clock, effort)
    if start.lane == "picture" and effort.spent * SECONDS > SHORT_SECONDS:
        raise NotShort
    return _laid_out(ids, tuple(sources), measures, processor, clock, effort.spent)


def _measure(
    n_ids: int, sources: Sequence[Source], room: Room, start: StartWorker, processor: Processor, clock: StageClock,
    effort: EffortBudget,
) -> tuple[Measure, ...]:  # fmt: skip
    """Ends at the first track that is too much: decoded sounds are kept, and many of them could be gigabytes.

    Too much is more than the model's length, or more work than the bytes of the media allow. How large a video is that
    gives way is decided when all others are known. Until then the least counts.
    """
    measures: list[Measure] = []
    _check_length(n_ids, measures, len(sources), room)
    n = n_ids
    for source in sources:
        source.check()
        with clock.stage("measure", source.kind), within_bound(source.param):
            measures.append(processor.measure(source, start.media))
        found = measures[-1]
        effort.spend(_effort(source, found), source.param)
        n += least(found) - 1 if gives_way(found) else found.n_added
        _check_length(n, measures, len(sources), room)
    return shared(n_ids, measures, room)


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


def _check_length(n: int, measures: Sequence[Measure], n_tracks: int, room: Room) -> None:
    if n < room.tokens:
        return
    of_media = sum(least(measure) if gives_way(measure) else measure.n_pads for measure in measures)
    raise ChatError(
        f"the prompt has {'' if len(measures) == n_tracks else 'at least '}{n} tokens ({n - of_media} of text, "
        f"{of_media} of media); with at least one token of answer the model takes {room.tokens}",
        code=TOO_LONG,
    )


def _laid_out(
    ids: list[int], sources: tuple[Source, ...], measures: tuple[Measure, ...], processor: Processor, clock: StageClock,
    effort: int,
) -> _Draft:  # fmt: skip
    for source, measure in zip(sources, measures, strict=True):
        if measure.n_pads < 2:
            small = "short" if source.kind == "audio" else "small"
            message = f"this {source.kind} is too {small} for the model: it has fewer than two tokens"
            raise ChatError(message, source.param)
    with clock.stage("layout"):
        layout = processor.expand(ids, measures)
        positions, delta = processor.positions(layout, measures)
    return _Draft(
        ids=ids, sources=sources, measures=measures, layout=layout, positions=positions, delta=delta, effort=effort
    )


def _fill(
    draft: _Draft, request_id: str, start: StartWorker, processor: Processor, ask: AskLeases, check: Check,
    clock: StageClock,
) -> _Draft:  # fmt: skip
    """Media go into leases, words into ids. After a video that decodes shorter all is laid out and leased again."""
    shorter: dict[int, np.ndarray] = {}  # kept, so that decoding once more cannot give yet another length
    while True:
        params = tuple(source.param for source in draft.sources)
        sizes = tuple(measure.nbytes for measure in draft.measures)
        pads = tuple(measure.n_pads for measure in draft.measures)
        with clock.stage("lease"):
            names = ask(
                Measured(request_id=request_id, nbytes=sizes, params=params, n_pads=pads, seconds=draft.seconds)
            )
        measures = list(draft.measures)
        for i, (name, measure) in enumerate(zip(names, draft.measures, strict=True)):
            check()
            pixels = shorter.get(i)
            if pixels is None:
                with within_bound(draft.sources[i].param):
                    pixels = processor.load(draft.sources[i], measure, start.media, clock)
            if pixels.shape != measure.shape:
                shorter[i], measures[i] = pixels, measure.cut(len(pixels))
                continue
            with clock.stage("write", measure.kind):
                write_segment(Path(start.shm_root), name, pixels)
            write_words(draft.layout.input_ids, draft.layout.spans[i], name, measure.shape)
        if measures == list(draft.measures):
            return draft
        draft = _laid_out(draft.ids, draft.sources, tuple(measures), processor, clock, draft.effort)


def _check_media(chat: Chat, processor: Processor) -> None:
    """The server has looked at the kinds of media (server/requests/checks.py)."""
    hears = "audio_in_video" in processor.features or all(media.kind != "video" for media in chat.media)
    if chat.media_options.use_audio and not hears:
        param = f"{MEDIA}.use_audio_in_video"
        raise ChatError(f"{param}: this model does not hear videos", param)
    boxes = [part for turn in chat.turns for part in turn.parts if isinstance(part, Boxes)]
    if boxes and "grounding" not in processor.features:
        raise ChatError("this model takes no boxes", boxes[0].param)
    for media in chat.media:
        if media.options.use_audio and "audio_in_video" not in processor.features:
            raise ChatError("this model does not hear videos: it takes no use_audio_in_video", media.param)


def _check_count(chat: Chat, start: StartWorker, processor: Processor) -> None:
    """What the model's window drops does not count."""
    media, most = chat.media, start.media.max_items
    if len(media) > most:
        raise ChatError(f"the chat holds {len(media)} media items, at most {most} are allowed", media[most].param)
    for kind, modality in processor.modalities.items():
        of_kind = [medium for medium in media if medium.kind == kind]
        if modality.most is not None and len(of_kind) > modality.most:
            raise ChatError(
                f"the prompt holds {len(of_kind)} media items of kind {kind}, this model takes at most {modality.most}",
                of_kind[modality.most].param,
            )


def _check_text(chat: Chat, start: StartWorker, processor: Processor) -> None:
    """Refuse what cannot fit before all of it is encoded: that would take minutes, and memory by the token."""
    _check_characters(chat.characters, start, processor)
    parts = (part.text for turn in chat.turns for part in turn.parts if isinstance(part, Text))
    _check_beginning("\n".join(parts), start, processor)


def _check_characters(characters: int, start: StartWorker, processor: Processor) -> None:
    # Every token stands for at most this many characters; composing (NFC) may have made one out of four.
    most = 4 * processor.tokenizer.longest_token * start.max_model_len
    if characters > most:
        raise ChatError(
            f"the prompt holds {characters} characters of text, more than fit into the model's "
            f"{start.max_model_len} tokens",
            code=TOO_LONG,
        )


def _check_beginning(text: str, start: StartWorker, processor: Processor) -> None:
    """Encode longer and longer beginnings of a long text. Where it is cut alone a token more or less may be counted."""
    n = _CHARACTERS * start.max_model_len
    while n < len(text):
        found = len(processor.tokenizer.encode(text[:n]))
        if found > _MOST_TOKENS * start.max_model_len:
            raise ChatError(
                f"the first {n} characters of the prompt's text are {found} tokens, more than fit into the model's "
                f"{start.max_model_len}",
                code=TOO_LONG,
            )
        n *= 2


def _places(spans: Spans, count: int) -> Iterator[int]:
    for start, length in spans:
        yield from range(start, start + min(length, count))
        count -= min(length, count)
