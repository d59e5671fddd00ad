"""The way to a frame: which packets are decoded for the frames that are looked at."""

import numpy as np

from tokenization.media.video_decoder import PacketIndex, PacketRun, plan_runs


def index(pts: list[int], keys: list[int], **more: bool) -> PacketIndex:
    """Packets with these times of showing."""
    packets = np.argsort(pts, kind="stable")
    key_frames = tuple(int(np.searchsorted(np.array(pts)[packets], pts[key])) for key in keys)
    return PacketIndex(packets=packets, keys=tuple(keys), key_frames=key_frames, n_packets=len(pts), **more)


def test_runs_begin_at_the_key_before_and_end_at_the_frame() -> None:
    plain = index(list(range(40)), [0, 10, 20, 30])
    assert plan_runs(plain, [13]) == (PacketRun(start=10, stop=13, frames=(13,)),)
    assert plan_runs(plain, [3, 35, 37]) == (
        PacketRun(start=0, stop=3, frames=(3,)),
        PacketRun(start=30, stop=37, frames=(35, 37)),
    )
    # Frame 9 is the last before the next key: going on costs nothing more than beginning anew.
    assert plan_runs(plain, [9, 10]) == (PacketRun(start=0, stop=10, frames=(9, 10)),)
    assert plan_runs(plain, [5, 5, 2]) == (PacketRun(start=0, stop=5, frames=(2, 5)),)


def test_a_frame_shown_before_its_own_key_needs_the_key_before() -> None:
    # Decoded: I0 P3 B1 B2 | I6 B4 B5 P9 B7 B8. Frames 4 and 5 lie behind the second key but need the first one's P3.
    open_gop = index([0, 3, 1, 2, 6, 4, 5, 9, 7, 8], [0, 4])
    assert plan_runs(open_gop, [4]) == (PacketRun(start=0, stop=5, frames=(4,)),)
    assert plan_runs(open_gop, [6]) == (PacketRun(start=4, stop=4, frames=(6,)),)
    assert plan_runs(open_gop, [7, 9]) == (PacketRun(start=4, stop=8, frames=(7, 9)),)
    # On the way to P3, and then from the next key on: B4 and B5 are not needed.
    assert plan_runs(open_gop, [3, 9]) == (
        PacketRun(start=0, stop=1, frames=(3,)),
        PacketRun(start=4, stop=7, frames=(9,)),
    )


def test_frames_that_stand_alone_are_decoded_alone() -> None:
    alone = index(list(range(6)), list(range(6)))
    assert [(run.start, run.stop) for run in plan_runs(alone, [1, 2, 5])] == [(1, 1), (2, 2), (5, 5)]


def test_without_times_everything_is_decoded_in_order() -> None:
    unordered = index(list(range(20)), [0, 10], counted=True)
    assert plan_runs(unordered, [15, 12]) == (PacketRun(start=0, stop=19, frames=(12, 15)),)


def test_frames_before_the_first_key_begin_at_the_first_packet() -> None:
    assert plan_runs(index(list(range(9)), [4]), [2, 5]) == (
        PacketRun(start=0, stop=2, frames=(2,)),
        PacketRun(start=4, stop=5, frames=(5,)),
    )
