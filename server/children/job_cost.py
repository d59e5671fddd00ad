"""What a worker is expected to take for a job, and what it may take: known without opening anything."""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from configs.serve import MediaConfig
from tokenization.chat.parts import Kind, Media
from tokenization.messages import Draw, Encode, Job, Lane

# Seconds of a worker: of each job, of each character of text, of each medium and of each character of its source.
# Measured on 2026-11-22: a BPE tokenizer on prose, JPEGs of 640 x 480 to 12 megapixels, 10 s of 720p.
JOB = 0.001
TEXT = 1e-6
EXPECTED: Mapping[Kind, tuple[float, float]] = {"image": (0.002, 5e-8), "audio": (0.02, 1e-7), "video": (0.1, 1.5e-7)}
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
        seconds, _, size = of_medium(job.media, limits)
        return JobCost(seconds=seconds, may_take=DRAW_SECONDS, one_call=DRAW_SECONDS, size=size, lane="media")
    media = () if isinstance(job, Encode) else job.chat.media
    size = characters = len(job.text) if isinstance(job, Encode) else job.chat.characters
    seconds, of_text = JOB + TEXT * characters, MAY_TEXT * characters
    lane: Lane = "text" if seconds <= QUICK_SECONDS else "media"
    if media:
        lane = "picture" if short else "media"
    of_media = []
    for medium in media:
        expected, most, n = of_medium(medium, limits)
        seconds += expected
        of_media.append(most)
        size += n
        if medium.kind != "image":
            lane = "media"
    may_take = of_text + sum(heapq.nlargest(limits.max_items, of_media))
    return JobCost(seconds=seconds, may_take=may_take, one_call=of_text, size=size, lane=lane)


def of_medium(medium: Media, limits: MediaConfig) -> tuple[float, float, int]:
    """The seconds that are expected, those that it may take until it is measured, and characters of its sources."""
    once, each = EXPECTED["image" if medium.frames else medium.kind]
    seconds, size, sent = 0.0, 0, 0
    for source in medium.frames or (medium.source,):
        sent += len(source)
        whole = source[:5].lower() == "data:"  # it holds what it says; a path does not
        seconds += once + each * (len(source) if whole else FILE_CHARACTERS)
        size += len(source) if whole else limits.max_file_bytes
    most = MAY_CHARACTER * size
    if medium.kind == "audio" or medium.options.use_audio:
        most += min(MAY_SOUND_CHARACTER * size, MAY_SOUND_SECOND * limits.max_audio_seconds)
    return seconds, most, sent
