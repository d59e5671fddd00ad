"""The options of one medium: how many frames, how many pixels, in how much detail."""

from collections.abc import Mapping
from typing import Any

import msgspec

from tokenization.chat.errors import ChatError, type_name

# The keys that may stand beside a medium of each kind. A key is read in MediaOptions.read and kept in a field.
KEYS: Mapping[str, tuple[str, ...]] = {
    "image": ("min_pixels", "max_pixels", "detail", "max_dynamic_patch"),
    "video": ("fps", "num_frames", "min_pixels", "max_pixels", "total_pixels", "use_audio_in_video"),
    "audio": (),
}
LOW_DETAIL_PIXELS = 512 * 512  # what `detail: low` leaves of a picture; the others change nothing
_FIELDS = {"use_audio_in_video": "use_audio"}  # fields with another name than their key
_WHOLE = ("num_frames", "min_pixels", "max_pixels", "total_pixels", "max_dynamic_patch")
MOST_TILES = 128  # that a request may ask for of one picture
_DETAILS = ("auto", "low", "high", "original")
_MAX_NUMBER = 2**53  # whole numbers beyond it are not exact as floats
_MIN_FPS = 1e-4  # one frame in three hours: positions that grow with the seconds between frames still fit 32 bits


class MediaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Raises ChatError for a number out of range, fps beside num_frames, or min_pixels above max_pixels."""

    fps: float | None = None  # frames looked at per second; for a list of frames: the rate they were taken at
    num_frames: int | None = None  # frames looked at, instead of fps
    min_pixels: int | None = None  # of one frame after resizing
    max_pixels: int | None = None
    total_pixels: int | None = None  # of a video: of all pairs of frames together, after resizing
    use_audio: bool | None = None  # of a video: its sound is heard too; not unless it is asked for
    max_dynamic_patch: int | None = None  # of a picture that is cut into tiles: how many at most
    low_detail: bool = False  # of a picture: few pixels will do; a model with one size for all of them may ignore it

    def __post_init__(self) -> None:
        for name in ("fps", *_WHOLE):
            value: Any = getattr(self, name)
            if value is None:
                continue
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole and (name in _WHOLE or not isinstance(value, float)):
                raise ChatError(f"{name} must be a{' whole' if name in _WHOLE else ''} number", name)
            if not 0 < value < _MAX_NUMBER:  # false for NaN too
                raise ChatError(f"{name} must be a number greater than 0 and below 2**53", name)
        if self.max_dynamic_patch is not None and self.max_dynamic_patch > MOST_TILES:
            raise ChatError(f"max_dynamic_patch must be at most {MOST_TILES}", "max_dynamic_patch")
        if self.fps is not None and self.fps < _MIN_FPS:
            raise ChatError(f"fps must be at least {_MIN_FPS}", "fps")
        if self.fps is not None and self.num_frames is not None:
            raise ChatError("fps and num_frames exclude each other", "num_frames")
        if self.min_pixels is not None and self.max_pixels is not None and self.min_pixels > self.max_pixels:
            raise ChatError("min_pixels must not be greater than max_pixels", "min_pixels")

    @property
    def bounds_pixels(self) -> bool:
        """Whether the size of a picture or frame is bounded here."""
        return self.min_pixels is not None or self.max_pixels is not None

    @classmethod
    def read(cls, part: Mapping[str, Any], param: str = "") -> "MediaOptions":
        """From a content part as it came from JSON, at `param`; other keys are ignored. Raises ChatError."""
        detail, use_audio = part.get("detail"), part.get("use_audio_in_video")
        try:
            if detail is not None and detail not in _DETAILS:
                raise ChatError(f"the detail is one of {', '.join(map(repr, _DETAILS))}", "detail")
            if use_audio is not None and not isinstance(use_audio, bool):
                raise ChatError(f"expected true or false, got {type_name(use_audio)}", "use_audio_in_video")
            return cls(
                fps=part.get("fps"), num_frames=part.get("num_frames"), min_pixels=part.get("min_pixels"),
                max_pixels=part.get("max_pixels"), total_pixels=part.get("total_pixels"), use_audio=use_audio,
                max_dynamic_patch=part.get("max_dynamic_patch"), low_detail=detail == "low",
            )  # fmt: skip
        except ChatError as error:
            error.param = f"{param}.{error.param}" if param else error.param
            raise

    def over(self, others: "MediaOptions", kind: str) -> "MediaOptions":
        """These, and of `others` what these leave open, as far as a medium of this kind has it and it agrees."""
        merged = {name: getattr(self, name) for name in self.__struct_fields__}
        for name in (_FIELDS.get(key, key) for key in KEYS[kind]):
            if name in merged and merged[name] is None:
                merged[name] = getattr(others, name)
        if self.fps is not None or self.num_frames is not None:  # each decides how many frames are looked at
            merged |= {"fps": self.fps, "num_frames": self.num_frames}
        fewest, most = merged["min_pixels"], merged["max_pixels"]
        if fewest is not None and most is not None and fewest > most:
            merged |= {"min_pixels": self.min_pixels, "max_pixels": self.max_pixels}
        return MediaOptions(**merged)
