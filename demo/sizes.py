"""How large the demo model is, and what its checkpoint says of itself."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of all three parts. Widths are channels, lengths of audio are mel frames (10 ms)."""

    hidden: int = 192
    layers: int = 4
    heads: int = 6
    kv_heads: int = 2
    inter: int = 512
    rope_theta: float = 10_000.0
    mrope: tuple[int, int, int] = (4, 6, 6)  # frequencies of time, height, width: half a head in all
    eps: float = 1e-6

    vision_width: int = 160
    vision_depth: int = 5
    vision_heads: int = 5
    vision_inter: int = 352
    patch: int = 14  # pixels
    merge: int = 2  # patches along a side of a token

    mels: int = 64
    audio_width: int = 128
    audio_depth: int = 3
    audio_heads: int = 4
    audio_inter: int = 384
    audio_window: int = 100  # half of a chunk, mel frames

    min_pixels: int = 112 * 112  # of a picture after resizing
    max_pixels: int = 196 * 196
    frame_min_pixels: int = 56 * 56  # of a frame of a clip
    frame_max_pixels: int = 112 * 112
    positions_per_second: int = 25  # of clips and sounds on the time axis

    @property
    def head_dim(self) -> int:
        """Channels of one head of the decoder."""
        return self.hidden // self.heads

    @property
    def cell(self) -> int:
        """Pixels along a side of one token."""
        return self.patch * self.merge
