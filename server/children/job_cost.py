"""What a worker is expected to take for a job, and what it may take: known without opening anything."""

import heapq
from dataclasses import dataclass
from itertools import repeat

from configs.serve import MediaConfig
from tokenization.chat.parts import Media
from tokenization.messages import Draw, Encode, Job, Lane

# Seconds of a worker: of each job, of each character of text, of each medium and of each character of its source.
# Measured on 2026-11-22: a BPE tokenizer on prose, JPEGs of 640 x 480 to 12 megapixels, 10 s of 720p.
JOB = 0.001
TEXT = 1e-6
PICTURE, PICTURE_CHARACTER = 0.002, 5e-8
SOUND, SOUND_CHARACTER = 0.02, 1e-7
VIDEO, VIDEO_CHARACTER = 0.1, 1.5e-7
FILE_CHARACTERS = 1 << 20  # what a path may lead to counts as so much
# Seconds that a job may take at most until it has told what it holds, beside --step-seconds: a busy machine, the worst
# file. A picture's header is read, a video's packets are gone through, a sound is decoded.
MAY_TEXT = 1e-5  # for each character; one call of the tokenizer, too
MAY_CHARACTER = 2e-6  # for each of a source
MAY_SOUND_CHARACTER = 5e-5  # the same of a sound: 750 bytes hold a second of speech
MAY_SOUND_SECOND = 0.1  # and no more than this for each second that it may last
DRAW_SECONDS = 40.0  # the same of drawing on a picture: a PNG is written in one call
QUICK_SECONDS = 0.5  # a text that is expected to take longer would hold up the others: its turn is among the media


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCost:
    """Of one job."""

    seconds: float  # right within a factor of some: they order jobs, and hold until the job has told the truth
    may_take: float  # seconds beside --step-seconds, until the worker has measured all
    one_call: float  # the part of them in which nothing is heard of the job
    size: int  # characters that are sent
    lane: Lane  # "text", "picture": the worker of such may take it, and so may any other


def cost_of(job: Job, limits: MediaConfig, *, short: bool = True) -> JobCost:
    """short: the worker of pictures has not handed it back."""
    if isinstance(job, Draw):
        seconds = seconds_of_medium(job.media)
        size = len(job.media.source)
        return JobCost(seconds=seconds, may_take=DRAW_SECONDS, one_call=DRAW_SECONDS, size=size, lane="media")
    if isinstance(job, Encode):
        n = len(job.text)
        seconds, of_text = seconds_of_text(n), MAY_TEXT * n
        return JobCost(seconds=seconds, may_take=of_text, one_call=of_text, size=n, lane=_lane_of_text(seconds))
    media, characters = job.chat.media, job.chat.characters
    kinds = {medium.kind for medium in media}
    seconds = seconds_of_text(characters) + sum(map(seconds_of_medium, media))
    of_text = MAY_TEXT * characters
    of_media = heapq.nlargest(limits.max_items, map(_may_take_medium, media, repeat(limits)))
    lane: Lane = "picture" if kinds == {"image"} and short else "media"
    return JobCost(
        seconds=seconds, may_take=of_text + sum(of_media), one_call=of_text, size=job.chat.size,
        lane=lane if kinds else _lane_of_text(seconds),
    )  # fmt: skip


def seconds_of_text(characters: int) -> float:
    return JOB + TEXT * characters


def seconds_of_medium(medium: Media) -> float:
    if medium.frames:
        return sum(PICTURE + PICTURE_CHARACTER * _size(frame) for frame in medium.frames)
    size = _size(medium.source)
    if medium.kind == "image":
        return PICTURE + PICTURE_CHARACTER * size
    if medium.kind == "audio":
        return SOUND + SOUND_CHARACTER * size
    return VIDEO + VIDEO_CHARACTER * size


def _lane_of_text(seconds: float) -> Lane:
    return "text" if seconds <= QUICK_SECONDS else "media"


def _may_take_medium(medium: Media, limits: MediaConfig) -> float:
    size = sum(_size(source, limits.max_file_bytes) for source in medium.frames or (medium.source,))
    if medium.kind != "audio" and not medium.options.use_audio:
        return MAY_CHARACTER * size
    heard = min(MAY_SOUND_CHARACTER * size, MAY_SOUND_SECOND * limits.max_audio_seconds)
    return MAY_CHARACTER * size + heard


def _size(source: str, of_file: int = FILE_CHARACTERS) -> int:
    """A data: URL holds what it says; a path does not."""
    return len(source) if source[:5].lower() == "data:" else of_file
