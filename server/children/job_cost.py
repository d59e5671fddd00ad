"""How long a worker is expected to take for a job, by what can be known of it without opening anything."""

import heapq
from itertools import repeat

from configs.serve import MediaConfig
from tokenization.chat.parts import Chat, Media

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


def seconds_of_text(characters: int) -> float:
    return JOB + TEXT * characters


def seconds_of_chat(chat: Chat) -> float:
    """Right within a factor of some: it orders the jobs of one client, and holds until the job has told the truth."""
    return seconds_of_text(chat.characters) + sum(map(seconds_of_medium, chat.media))


def seconds_of_medium(medium: Media) -> float:
    if medium.frames:
        return sum(PICTURE + PICTURE_CHARACTER * _size(frame) for frame in medium.frames)
    size = _size(medium.source)
    if medium.kind == "image":
        return PICTURE + PICTURE_CHARACTER * size
    if medium.kind == "audio":
        return SOUND + SOUND_CHARACTER * size
    return VIDEO + VIDEO_CHARACTER * size


def may_take(chat: Chat, limits: MediaConfig) -> float:
    """Seconds beside --step-seconds, until the worker has measured all: by bytes alone. What comes then it says."""
    media = heapq.nlargest(limits.max_items, (_may_take_medium(medium, limits) for medium in chat.media))
    return may_take_text(chat) + sum(media)


def may_take_text(chat: Chat) -> float:
    """The part of it that one call may take in which nothing is heard of the job."""
    return MAY_TEXT * chat.characters


def _may_take_medium(medium: Media, limits: MediaConfig) -> float:
    size = sum(map(_most, medium.frames, repeat(limits))) if medium.frames else _most(medium.source, limits)
    if medium.kind != "audio" and not medium.options.use_audio:
        return MAY_CHARACTER * size
    heard = min(MAY_SOUND_CHARACTER * size, MAY_SOUND_SECOND * limits.max_audio_seconds)
    return MAY_CHARACTER * size + heard


def _most(source: str, limits: MediaConfig) -> int:
    """Characters, or bytes that a path may lead to."""
    return len(source) if source[:5].lower() == "data:" else limits.max_file_bytes


def _size(source: str) -> int:
    """A data: URL holds what it says; a path does not."""
    return len(source) if source[:5].lower() == "data:" else FILE_CHARACTERS
