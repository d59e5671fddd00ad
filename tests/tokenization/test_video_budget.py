"""Shares of what is left: small videos keep what they want, the others get the same, and all together fit."""

from hypothesis import example, given
from hypothesis import strategies as st

from configs.serve import MediaConfig
from tokenization.chat.options import MediaOptions
from tokenization.media.frame_sampling import FrameSize
from tokenization.media.video_plan import VideoPlan
from tokenization.messages import Room
from tokenization.processor import Measure
from tokenization.video_budget import shared

PLENTY = 1 << 40


def video(grids: int, height: int, width: int, total_pixels: int | None = None) -> Measure:
    options = MediaOptions(min_pixels=1, max_pixels=10**7, total_pixels=total_pixels)
    frame = FrameSize(height=height, width=width, n=2 * grids, options=options, limits=MediaConfig())
    size = frame.find()
    grid = (grids, size[0] // 14, size[1] // 14)
    n = grid[0] * grid[1] * grid[2]
    plan = VideoPlan(
        indices=tuple(range(2 * grids)), seconds_per_grid=1.0, fps=2.0, size=size, info=None, frame=frame
    )  # fmt: skip
    return Measure(kind="video", grid=grid, shape=(n, 1176), n_tokens=n // 4, video=plan)


PICTURE = Measure(kind="image", grid=(1, 20, 20), shape=(400, 588), n_tokens=100)
VIDEOS = st.lists(
    st.builds(video, st.integers(1, 40), st.integers(28, 900), st.integers(56, 900)).filter(lambda v: v.n_tokens > 1),
    min_size=1, max_size=4,
)  # fmt: skip


@given(VIDEOS, st.integers(10, 20_000), st.integers(0, 500))
@example([video(1, 82, 82)], 10, 0)
def test_shares(videos: list[Measure], length: int, n_text: int) -> None:
    n_ids = n_text + len(videos) + 1
    found = shared(n_ids, [PICTURE, *videos], Room(tokens=length, media_tokens=PLENTY, media_bytes=PLENTY))
    assert found[0] is PICTURE
    budget = (length - n_text - 100) * 3 // 4
    shares = [measure.n_tokens for measure in found[1:]]
    assert sum(shares) <= max(budget, sum(video.fewest for video in videos))
    for before, after in zip(videos, found[1:], strict=True):
        assert before.fewest - 2 * (before.grid[0] == 1) <= after.n_tokens <= before.n_tokens and after.n_tokens > 1
        assert after.shape == (after.n_tokens * 4, 1176) and after.grid[0] == before.grid[0]
        assert after.video is not None and after.grid[1:] == tuple(side // 14 for side in after.video.size)
        assert (after.reduced is not None) == (after.n_tokens < before.n_tokens)
    if sum(video.n_tokens for video in videos) <= budget:
        assert shares == [video.n_tokens for video in videos]


def test_alike_videos_get_alike_shares() -> None:
    large, small = video(10, 500, 500), video(2, 140, 140)
    room = Room(tokens=2048, media_tokens=PLENTY, media_bytes=PLENTY)
    first, kept, second = shared(3, [large, small, large], room)
    assert first.grid == second.grid and kept is small
    assert 0.85 * (2048 * 3 // 4 - small.n_tokens) <= 2 * first.n_tokens  # whole rows of tokens


def test_what_gives_way() -> None:
    assert video(4, 300, 300).gives_way and not video(4, 300, 300, total_pixels=10**6).gives_way
    assert not PICTURE.gives_way and PICTURE.fewest == PICTURE.n_tokens


def test_the_sizes_of_others_count_against_every_bound() -> None:
    large = video(40, 500, 500)
    for room, limit in (
        (Room(tokens=1000, media_tokens=PLENTY, media_bytes=PLENTY), "max_model_len"),
        (Room(tokens=PLENTY, media_tokens=1000, media_bytes=PLENTY), "embedding_mib"),
        (Room(tokens=PLENTY, media_tokens=PLENTY, media_bytes=1000 * 4704), "shm_mib"),
    ):
        picture, found = shared(2, [PICTURE, large], room)
        assert found.reduced is not None and found.reduced.limit == limit
        assert picture.n_tokens + found.n_tokens <= 1000 and picture.nbytes + found.nbytes <= 1000 * 4704
