"""How bytes and messages cross a process boundary, and who removes them; docs/shared-memory.md explains it."""

from .channel import AsyncChannel, Channel, ChannelClosed, ChannelError, channel_pair, send_to_all
from .client import Segment, create_shm, get_data_from_shm, release_shared_memory
from .int64_words import (
    WordError,
    decode_shape_from_int64,
    decode_shm_name_from_int64,
    encode_shape_to_int64,
    encode_shm_name_to_int64,
)
from .owner import Owner
from .pool import NeverFits, Pool, PoolFull, PoolStats
from .pulse import Ending, Loading, Pulse
from .root import OwnerError, check_root, default_root, disk_under, private_root, room
from .segment import (
    SegmentError,
    SegmentFull,
    SegmentGone,
    SegmentMismatch,
    file_bytes,
    read_segment,
    write_segment,
)
from .stillness import Stillness, work_of
from .sweep import SweepReport, sweep, sweep_if_last, sweep_in_parts

__all__ = [
    "AsyncChannel",
    "Channel",
    "ChannelClosed",
    "ChannelError",
    "Ending",
    "Loading",
    "NeverFits",
    "Owner",
    "OwnerError",
    "Pool",
    "PoolFull",
    "PoolStats",
    "Pulse",
    "Segment",
    "SegmentError",
    "SegmentFull",
    "SegmentGone",
    "SegmentMismatch",
    "Stillness",
    "SweepReport",
    "WordError",
    "channel_pair",
    "check_root",
    "create_shm",
    "decode_shape_from_int64",
    "decode_shm_name_from_int64",
    "default_root",
    "disk_under",
    "encode_shape_to_int64",
    "encode_shm_name_to_int64",
    "file_bytes",
    "get_data_from_shm",
    "private_root",
    "read_segment",
    "release_shared_memory",
    "room",
    "send_to_all",
    "sweep",
    "sweep_if_last",
    "sweep_in_parts",
    "work_of",
    "write_segment",
]
