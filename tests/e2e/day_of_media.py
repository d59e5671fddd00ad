"""What clients send in a day, made small: pictures of all sizes and forms, sounds, clips, and some that are refused."""

import io
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from PIL import Image

from tests.e2e.running import data_url
from tests.samples.pictures import bomb_png, encoded, photo, with_alpha
from tests.samples.sounds import encode_sound, make_talkie, make_tone
from tests.samples.videos import make_clip

Inputs = list[dict[str, Any]]
SEED = 20261122
MOST_MEDIA = 4  # in one chat
# Of a thousand media, and how many different files there are of each kind.
SHARES = {
    "photo": (560, 40), "screenshot": (120, 10), "transparent": (80, 10), "grey": (40, 6), "large": (20, 3),
    "sound": (90, 12), "clip": (60, 8), "talkie": (15, 3), "huge": (5, 2), "damaged": (10, 6),
}  # fmt: skip


def day(n_media: int) -> Iterator[Inputs]:
    """Chats with so many media together, the same ones whenever it is asked."""
    rng = random.Random(SEED)
    files = {kind: [_MAKERS[kind](rng, i) for i in range(n)] for kind, (_, n) in SHARES.items()}
    kinds, shares = list(SHARES), [share for share, _ in SHARES.values()]
    left = n_media
    while left > 0:
        n = min(left, rng.choice([1, 1, 1, 2, MOST_MEDIA]))
        left -= n
        words = " ".join(str(rng.getrandbits(30)) for _ in range(rng.randrange(1, 200)))
        yield [*(rng.choice(files[kind]) for kind in rng.choices(kinds, shares, k=n)), {"text": words}]


def _photo(rng: random.Random, i: int) -> dict[str, Any]:
    """From a thumbnail to 3 megapixels, as a JPEG, one in four progressive."""
    width = round(120 * 16 ** rng.random())
    height = round(width * rng.uniform(0.5, 1.4))
    file = io.BytesIO()
    photo(width, height, i).save(file, "JPEG", quality=85, progressive=i % 4 == 0)
    return {"image": data_url(file.getvalue())}


def _screenshot(rng: random.Random, i: int) -> dict[str, Any]:
    width, height = rng.choice([(1280, 720), (1920, 1080), (1170, 2532)])
    return {"image": data_url(encoded(photo(width // 8, height // 8, i).resize((width, height), 0), "PNG"))}


def _transparent(rng: random.Random, i: int) -> dict[str, Any]:
    size = rng.randrange(200, 1600)
    return {"image": data_url(encoded(with_alpha(size, size), "PNG" if i % 2 else "WEBP"))}


def _grey(rng: random.Random, i: int) -> dict[str, Any]:
    """A scan of one bit, or a depth map of sixteen."""
    side = rng.randrange(800, 2400)
    if i % 2:
        return {"image": data_url(encoded(photo(side, side, i).convert("1"), "PNG"))}
    depth = np.linspace(0, 65535, side * side, dtype=np.uint16).reshape(side, side)
    return {"image": data_url(encoded(Image.fromarray(depth), "PNG"))}


def _large(rng: random.Random, i: int) -> dict[str, Any]:
    """12 megapixels of a phone."""
    return {"image": data_url(encoded(photo(1000, 750, i).resize((4000, 3000)), "JPEG", orientation=6 if i else None))}


def _sound(rng: random.Random, i: int) -> dict[str, Any]:
    rate = rng.choice([16000, 44100, 48000])
    return {"audio": data_url(encode_sound(make_tone(rng.uniform(0.5, 20), rate=rate), rate=rate))}


def _clip(rng: random.Random, i: int) -> dict[str, Any]:
    size = rng.choice([(96, 160), (360, 640), (720, 1280)])
    return {"video": data_url(make_clip(rng.randrange(20, 120), size=size)), "num_frames": 8}


def _talkie(rng: random.Random, i: int) -> dict[str, Any]:
    sound = make_tone(rng.uniform(1, 4), rate=44100)
    return {"video": data_url(make_talkie(sound)), "num_frames": 4, "use_audio_in_video": True}


def _huge(rng: random.Random, i: int) -> dict[str, Any]:
    """100 and 144 megapixels of one grey level, in some kilobytes."""
    return {"image": data_url(bomb_png(12000, 12000 if i else 8400))}


def _damaged(rng: random.Random, i: int) -> dict[str, Any]:
    data = bytearray(encoded(photo(600, 400, i), "JPEG" if i % 2 else "PNG"))
    return {"image": data_url(bytes(data[: len(data) * (i + 1) // 8]))}


_MAKERS: dict[str, Callable[[random.Random, int], dict[str, Any]]] = {
    "photo": _photo, "screenshot": _screenshot, "transparent": _transparent, "grey": _grey, "large": _large,
    "sound": _sound, "clip": _clip, "talkie": _talkie, "huge": _huge, "damaged": _damaged,
}  # fmt: skip
