"""Pictures, clips and sounds as the files that strangers send: encoded, worn or not, in a data URL. Asks nothing."""

import base64
import io
from types import MappingProxyType

import numpy as np
from PIL import Image

from demo.clips import Clip
from demo.encode import CLIP_FORMATS, SOUND_FORMATS, encode_clip, encode_sound
from demo.recording import worn_sound
from demo.sounds import GLIDE, Sound
from demo.wear import worn_picture

Part = dict[str, str]  # one part of `inputs` of POST /chat

PICTURE_FORMATS = ("PNG", "JPEG", "WEBP")
RATES = (8000, 11025, 16000, 22050, 32000, 44100, 48000)  # hertz
FRAME_RATES = (8.0, 10.0, 12.0, 15.0, 24.0, 25.0, 30.0)
_WORN = 0.5  # of all media; wearing leaves some as they were
_TYPES = MappingProxyType(
    {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}
    | {"wav": "audio/wav", "flac": "audio/flac", "mp3": "audio/mpeg", "ogg": "audio/ogg", "m4a": "audio/mp4"}
    | {"mp4": "video/mp4", "webm": "video/webm", "avi": "video/x-msvideo", "gif": "image/gif"}
)


def data_url(content: bytes, format: str) -> str:
    """A file as the API takes it; `format` is of PICTURE_FORMATS, SOUND_FORMATS or CLIP_FORMATS."""
    return f"data:{_TYPES[format.split()[0]]};base64,{base64.b64encode(content).decode('ascii')}"


def picture_part(rng: np.random.Generator, image: Image.Image) -> Part:
    """An RGB picture as PNG, or as JPEG or WebP of any decent quality."""
    shown = worn_picture(rng, image) if rng.random() < _WORN else image
    format = PICTURE_FORMATS[int(rng.integers(len(PICTURE_FORMATS)))]
    file = io.BytesIO()
    if format == "PNG":
        shown.save(file, format)
    else:
        shown.save(file, format, quality=int(rng.integers(40, 96)))
    return {"image": data_url(file.getvalue(), format)}


def clip_part(rng: np.random.Generator, clip: Clip, number: int) -> Part:
    """The clip in format `number` of CLIP_FORMATS, counted round and round, at any usual rate of frames."""
    format = CLIP_FORMATS[number % len(CLIP_FORMATS)]
    return {"video": data_url(encode_clip(clip, FRAME_RATES[int(rng.integers(len(FRAME_RATES)))], format), format)}


def sound_part(rng: np.random.Generator, sound: Sound, number: int) -> Part:
    """The sound in format `number` of SOUND_FORMATS, counted round and round, at any rate that can hold it."""
    format = SOUND_FORMATS[number % len(SOUND_FORMATS)]
    samples = worn_sound(rng, sound.samples) if rng.random() < _WORN else sound.samples
    top = GLIDE[1] if sound.sweep else sound.hertz
    rates = [rate for rate in RATES if rate >= 2.5 * top]
    rate, channels = rates[int(rng.integers(len(rates)))], int(rng.integers(1, 3))
    return {"audio": data_url(encode_sound(samples, rate, format, channels=channels), format)}
