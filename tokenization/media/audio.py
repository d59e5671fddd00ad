"""The bytes of a sound, or of a video with one, become mono samples at 16 kHz."""

import itertools
import math
import operator
from collections.abc import Iterator

import numpy as np
import soxr
from av.audio.frame import AudioFrame

from configs.serve import MediaConfig
from tokenization.cancel import Check, go_on
from tokenization.chat.errors import ChatError
from tokenization.media.audio_decoder import AudioTooLong, SoundReader, open_sound

RATE = 16_000  # samples per second of what `read_sound` gives
_PIECE = 1 << 16  # samples that are taken to 16 kHz at once, or come out there
# Seconds above what a model hears that are taken for a container's padding: encoders begin with silence and end on a
# whole frame, and not every container says so. ADTS adds up to 0.21 s (AAC at 8 kHz), MP3 without a LAME tag 0.17 s,
# and an encoder with a lead of 2112 samples 0.20 s at 16 kHz.
PADDING_SECONDS = 0.25
_LEAD = 0.1  # seconds: headers may count the silence that a codec puts before a sound; Opus has at most 80 ms


def read_sound(
    data: bytes | memoryview, limits: MediaConfig, *, model_seconds: float = math.inf, check: Check = go_on
) -> np.ndarray:
    """float32 [n], n >= 1, finite, mono at 16 kHz: the sound in `data`, or the default sound track of the video in it.

    Channels are averaged, as feature extractors' own loaders do. Silence that a codec added is cut off where the file
    tells its length. Raises ChatError for no sound, values that are not finite, a file of which less than
    half decodes, and more than `limits.max_audio_seconds` or `model_seconds` + PADDING_SECONDS, where decoding stops.
    What is heard of a sound that is longer than `model_seconds` is for the caller to cut. `check` is called between
    packets.
    """
    taken = model_seconds + PADDING_SECONDS
    try:
        with open_sound(data, check) as sound:
            return _read(sound, min(limits.max_audio_seconds, taken))
    except AudioTooLong as error:
        if taken >= limits.max_audio_seconds:
            raise
        raise ChatError(
            f"the sound is too long: this model hears at most {model_seconds:g} s at once, and no more than "
            f"{PADDING_SECONDS:g} s above that are taken for a container's padding and cut off{error.length}"
        ) from None


# ---- details


def _read(sound: SoundReader, max_seconds: float) -> np.ndarray:
    sound.check_length(sound.claimed_seconds - _LEAD, max_seconds)
    sounds = ((frame.sample_rate, _to_mono(frame)) for frame in sound.frames(max_seconds))
    pieces = []
    n = 0
    for piece in _at_16_khz(sounds):
        # Before it is kept: one value that is no number would spread over the whole spectrum.
        if not np.isfinite(piece).all():
            raise ChatError("the sound holds values that are not finite numbers")
        pieces.append(piece)
        n += len(piece)
    if not n:
        raise ChatError("the file holds no sound that can be decoded")
    return np.concatenate(pieces)


def _to_mono(frame: AudioFrame) -> np.ndarray:
    """float32 [samples], whole numbers scaled to -1 .. 1: the mean of all channels."""
    values = frame.to_ndarray()  # [channels, samples] or [1, samples * channels]
    channels = values if frame.format.is_planar else values.reshape(-1, frame.layout.nb_channels).T
    # What is too large for float32 becomes infinite, which is an error further on.
    with np.errstate(over="ignore", invalid="ignore"):
        mono = channels.mean(axis=0, dtype=np.float64)
        if values.dtype.kind == "u":
            mono -= 1 << (8 * values.itemsize - 1)
        if values.dtype.kind in "iu":
            mono /= 1 << (8 * values.itemsize - 1)
        out: np.ndarray = mono.astype(np.float32)
    return out


def _at_16_khz(sounds: Iterator[tuple[int, np.ndarray]]) -> Iterator[np.ndarray]:
    """float32 [n] each, neither shifted nor longer nor shorter than they were. Their rate may change on the way.

    As librosa.load resamples by its default, "soxr_hq", whatever the pieces are; a last value that is missing is 0.
    """
    for rate, pieces in itertools.groupby(sounds, operator.itemgetter(0)):
        if rate == RATE:
            yield from (samples for _, samples in pieces)
            continue
        resampler = soxr.ResampleStream(rate, RATE, 1, dtype="float32", quality="HQ")
        step = max(1, _PIECE * min(rate, RATE) // RATE)  # at a rate of 1 Hz each sample becomes 16,000
        taken = given = 0  # samples
        for _, samples in pieces:
            taken += len(samples)
            for start in range(0, len(samples), step):
                piece = resampler.resample_chunk(samples[start : start + step])
                given += len(piece)
                yield piece
        piece = resampler.resample_chunk(np.zeros(0, np.float32), last=True)
        n = -(-taken * RATE // rate) - given
        yield np.pad(piece[:n], (0, max(n - len(piece), 0)))
