"""Videos of one prompt share the tokens that the model's length leaves.

A video whose request names no `total_pixels` may be made smaller: all such videos together get three quarters of the
tokens that text and other media leave, and the answer gets the rest. Small videos keep their size, the others share
evenly. So no video is refused for its length unless one token for each pair of frames is too much.
"""

from bisect import bisect_right
from collections.abc import Sequence

from shm import file_bytes
from tokenization.messages import ReducedBy, Room
from tokenization.processor import Measure

SHARE_OF_LENGTH, PARTS_OF_LENGTH = 3, 4  # three quarters of what is left
_SEGMENT = 2 * file_bytes(1)  # bytes that a segment takes beyond its data, at most


def shared(n_ids: int, measures: Sequence[Measure], room: Room) -> list[Measure]:
    """The same media, videos that give way within their shares: there are some. n_ids: as `render` gives the prompt."""
    videos = [measure for measure in measures if measure.gives_way]
    budget, limit = _budget(n_ids, videos, [measure for measure in measures if not measure.gives_way], room)
    level = _level([(video.fewest, video.n_tokens) for video in videos], budget)
    return [
        measure.shrunk(max(measure.fewest, level), limit) if measure.gives_way and measure.n_tokens > level else measure
        for measure in measures
    ]


def _budget(n_ids: int, videos: Sequence[Measure], others: Sequence[Measure], room: Room) -> tuple[int, ReducedBy]:
    """Tokens for all videos, and the setting that bounds them."""
    placed = n_ids + sum(measure.n_added for measure in others)
    placed += sum(video.n_added - video.n_tokens for video in videos)  # the videos' delimiters, not their placeholders
    per_token = max(-(-video.nbytes // video.n_tokens) for video in videos)
    nbytes = room.media_bytes - sum(measure.nbytes for measure in others) - _SEGMENT * (len(others) + len(videos))
    bounds: list[tuple[int, ReducedBy]] = [
        ((room.tokens - placed) * SHARE_OF_LENGTH // PARTS_OF_LENGTH, "max_model_len"),
        (room.media_tokens - sum(measure.n_tokens for measure in others), "embedding_mib"),
        (nbytes // per_token, "shm_mib"),
    ]
    return min(bounds)


def _level(wishes: Sequence[tuple[int, int]], budget: int) -> int:
    """The most tokens that a video may have, so that all have at most `budget`. wishes: (fewest, wanted) of each."""

    def taken(level: int) -> int:
        return sum(max(fewest, min(wanted, level)) for fewest, wanted in wishes)

    return bisect_right(range(1, max(wanted for _, wanted in wishes) + 1), budget, key=taken)
