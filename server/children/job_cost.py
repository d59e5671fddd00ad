"""How long a worker is expected to take for a job, by what can be known of it without opening anything."""

from tokenization.chat.parts import Chat, Media

# Seconds of a worker: of each job, of each character of text, of each medium and of each character of its source.
# Measured on 2026-11-22: a BPE tokenizer on prose, JPEGs of 640 x 480 to 12 megapixels, 10 s of 720p.
JOB = 0.001
TEXT = 1e-6
PICTURE, PICTURE_CHARACTER = 0.002, 5e-8
SOUND, SOUND_CHARACTER = 0.02, 1e-7
VIDEO, VIDEO_CHARACTER = 0.1, 1.5e-7
FILE_CHARACTERS = 1 << 20  # what a path may lead to counts as so much


def seconds_of_text(characters: int) -> float:
    return JOB + TEXT * characters


def seconds_of_chat(chat: Chat) -> float:
    """Right within a factor of some: it orders the jobs of one client, and holds until the job has told the truth."""
    media = chat.media
    sources = sum(map(_characters, media))
    return seconds_of_text(chat.size - sources) + sum(map(seconds_of_medium, media))


def seconds_of_medium(medium: Media) -> float:
    if medium.frames:
        return sum(PICTURE + PICTURE_CHARACTER * _size(frame) for frame in medium.frames)
    size = _size(medium.source)
    if medium.kind == "image":
        return PICTURE + PICTURE_CHARACTER * size
    if medium.kind == "audio":
        return SOUND + SOUND_CHARACTER * size
    return VIDEO + VIDEO_CHARACTER * size


def _characters(medium: Media) -> int:
    return len(medium.source) + sum(map(len, medium.frames))


def _size(source: str) -> int:
    """A data: URL holds what it says; a path does not."""
    return len(source) if source[:5].lower() == "data:" else FILE_CHARACTERS
