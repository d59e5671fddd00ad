"""Clips whose packets are all there while some of them hold nothing."""

import re
from collections.abc import Iterable

from tests.samples.videos import make_clip


def mjpeg_clip(n: int = 60, *, empty: Iterable[int] = (), size: tuple[int, int] = (96, 160)) -> bytes:
    """An AVI of `n` numbered frames at 30 a second, each a picture by itself; those in `empty` are zeros."""
    data = bytearray(make_clip(n, codec="mjpeg", container="avi", pixels="yuvj420p", size=size))
    starts = [match.start() for match in re.finditer(rb"00dc", data)][1 : n + 1]  # also named before and behind them
    for i in empty:
        length = int.from_bytes(data[starts[i] + 4 : starts[i] + 8], "little")
        data[starts[i] + 8 : starts[i] + 8 + length] = bytes(length)
    return bytes(data)
