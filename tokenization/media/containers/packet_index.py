"""Which packets of a video hold which frames, and the fewest that must be decoded for some of them."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PacketIndex:
    """Frames are numbered as they are shown, packets as they lie in the stream, the same at every reading."""

    packets: np.ndarray  # int64 [frames]: the packet of each frame
    keys: tuple[int, ...]  # packets at which decoding can start, ascending; at least one
    key_frames: tuple[int, ...]  # for each key: the first frame that needs no packet before it
    n_packets: int
    interlaced: bool = False  # a frame may be spread over two packets
    counted: bool = False  # the packets do not tell the order: frame i is the i-th that the decoder gives

    @property
    def all_keys(self) -> bool:
        """Every packet is a picture by itself."""
        return len(self.keys) == self.n_packets


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketRun:
    """Packets start .. stop, both included, decoded without a break."""

    start: int
    stop: int
    frames: tuple[int, ...]  # ascending


def plan_runs(index: PacketIndex, frames: Sequence[int]) -> tuple[PacketRun, ...]:
    """The fewest packets that give `frames`: each from the key before it, unless decoding passes by anyway."""
    if index.counted:
        return (PacketRun(start=0, stop=index.n_packets - 1, frames=tuple(sorted(set(frames)))),)
    ways = []
    for frame in set(frames):
        packet = int(index.packets[frame])
        key = bisect_right(index.keys, packet) - 1
        while key > 0 and index.key_frames[key] > frame:  # shown before its own key frame: it needs the key before
            key -= 1
        ways.append((index.keys[key] if key >= 0 else 0, frame, packet))
    runs: list[PacketRun] = []
    for start, frame, packet in sorted(ways):
        last = runs[-1] if runs else None
        # A packet that is a picture by itself costs nothing but itself.
        if last is not None and start <= last.stop + (0 if index.all_keys else 1):
            runs[-1] = PacketRun(start=last.start, stop=max(last.stop, packet), frames=(*last.frames, frame))
        else:
            runs.append(PacketRun(start=start, stop=packet, frames=(frame,)))
    return tuple(runs)
