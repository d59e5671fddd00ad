"""The bytes of a clip become upright RGB frames of one size, by seek-and-sample. Knows no model and no file names."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import av
import numpy as np
import pybase64
from av.sidedata.sidedata import SideData
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from PIL import Image

from tokenization.chat.errors import ChatError
from tokenization.media.frame_sampling import FPS, PacketIndex, Run, VideoCaps, VideoError, plan_runs
from tokenization.media.image import decode_rgb, read_header, resize
from tokenization.media.video_decoder import ClipReader, open_clip

_THREADS = 4  # of one decoder; more would wait for each other on the few packets of a run
_EXPLICIT = ("mov", "matroska")  # containers that say when each packet is shown
_FIRST_TRIES = 4  # key frames at which a first picture is looked for
_UNDECODABLE = "no frame of the video can be decoded"
_TURNS = {90: Image.Transpose.ROTATE_90, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_270}
# Signs of (a, b, c, d) in a display matrix -> how a frame becomes upright: flip left-right first? turn by how much?
_UPRIGHT = {
    (1, 0, 0, 1): (False, 0),
    (0, -1, 1, 0): (False, 90),
    (-1, 0, 0, -1): (False, 180),
    (0, 1, -1, 0): (False, 270),
    (-1, 0, 0, 1): (True, 0),
    (0, 1, 1, 0): (True, 90),
    (1, 0, 0, -1): (True, 180),
    (0, -1, -1, 0): (True, 270),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VideoInfo:
    """What the packets and one decoded frame of a clip tell. Frames are numbered as they are shown."""

    width: int  # of the upright frame, pixels
    height: int
    n_frames: int
    timestamps: np.ndarray  # float64 [n_frames], seconds since the first frame, ascending
    duration: float  # seconds, the last frame's own time included
    fps: float  # average
    rotation: int  # degrees counter-clockwise that make a stored frame upright: 0, 90, 180, 270
    mirrored: bool  # a stored frame is flipped left-right before it is turned
    index: PacketIndex


def probe(data: bytes | memoryview, caps: VideoCaps) -> VideoInfo:
    """Read the packets of a clip, then decode one frame, which alone says how the clip is turned.

    Raises VideoError for what is no video, holds none that can be decoded, or is above the caps; those are checked
    before anything is decoded.
    """
    index, seconds, duration, fps = _read_packets(data, caps)
    if duration > caps.max_duration_s:
        raise VideoError(f"the video lasts {duration:.0f} s, at most {caps.max_duration_s:.0f} s are allowed")
    frame = _first_picture(data, index, caps)
    mirrored, rotation = _upright(frame)
    turned = rotation in (90, 270)
    return VideoInfo(
        width=frame.height if turned else frame.width,
        height=frame.width if turned else frame.height,
        n_frames=len(index.packets),
        timestamps=seconds,
        duration=duration,
        fps=fps,
        rotation=rotation,
        mirrored=mirrored,
        index=replace(index, interlaced=bool(frame.interlaced_frame)),
    )


def read_frames(
    data: bytes | memoryview, info: VideoInfo, indices: Sequence[int], size: tuple[int, int], caps: VideoCaps
) -> tuple[np.ndarray, tuple[int, ...]]:
    """uint8 [n, height, width, 3] of the frames `indices`, resized to `size` (height, width), and which those are.

    `info` is what `probe` said of the same bytes; an index may be asked for twice. Only the packets that lead from key
    frames to the wanted ones are decoded. A frame that does not decode is left out; where an intact file has no
    picture of its own at an index, the one still shown then takes its place.

    Raises VideoError when none decodes or too much would have to be decoded.
    """
    if not indices or min(indices) < 0 or max(indices) >= info.n_frames:
        raise ValueError(f"frame indices must lie in 0 .. {info.n_frames - 1}")
    rows: dict[int, list[int]] = {}
    for row, frame_number in enumerate(indices):
        rows.setdefault(frame_number, []).append(row)
    _check_effort(info, plan_runs(info.index, indices), caps)
    out = np.empty((len(indices), *size, 3), np.uint8)
    missing = set(rows)
    rgb = VideoReformatter()
    # Among threads an error can take the frames around it with it; a second reading without them gets those back.
    for threads in (_THREADS, 1):
        runs = plan_runs(info.index, sorted(missing))
        with open_clip(data, caps, threads=threads, study=True) as clip:
            for frame_number, frame in clip.pick(info.index, runs):
                picture = resize(_to_image(frame, info, rgb), width=size[1], height=size[0])
                out[rows[frame_number]] = np.asarray(picture)
                missing.discard(frame_number)
            if not missing or not clip.errors:
                break
    kept = [row for row, frame_number in enumerate(indices) if frame_number not in missing]
    if not kept:
        raise VideoError(_UNDECODABLE)
    return (out[kept] if missing else out), tuple(indices[row] for row in kept)


# ---- a clip that is a list of pictures


def split_jpegs(payload: str, caps: VideoCaps) -> list[bytes]:
    """What follows `data:video/jpeg;base64,`: pictures in base64 with commas between them. Raises VideoError.

    They are counted before the first one is decoded.
    """
    n = payload.count(",") + 1
    if n > caps.max_frames:
        raise VideoError(f"the video has {n} frames, at most {caps.max_frames} are allowed")
    try:
        return [pybase64.b64decode(piece, validate=True) for piece in payload.split(",")]
    except ValueError:
        raise VideoError("a frame of the video is not valid base64") from None


def probe_jpegs(pictures: Sequence[bytes], caps: VideoCaps) -> tuple[int, int]:
    """(height, width) of the first of some encoded pictures, upright. Raises VideoError for any bad header."""
    if not 1 <= len(pictures) <= caps.max_frames:
        raise VideoError(f"the video has {len(pictures)} frames, it must have 1 to {caps.max_frames}")
    headers = []
    for i, data in enumerate(pictures):
        with _picture_errors(i):
            headers.append(read_header(data, max_source_pixels=caps.max_source_pixels, where=""))
    return headers[0].height, headers[0].width


def frames_from_jpegs(
    pictures: Sequence[bytes], indices: Sequence[int], size: tuple[int, int], caps: VideoCaps
) -> np.ndarray:
    """uint8 [n, height, width, 3] of the pictures `indices`, all resized to `size` (height, width).

    JPEG as the name of the data URL says, and whatever else the server reads as an image. Raises VideoError.
    """
    out = np.empty((len(indices), *size, 3), np.uint8)
    done: dict[int, int] = {}
    for row, i in enumerate(indices):
        if i in done:
            out[row] = out[done[i]]
            continue
        with _picture_errors(i):
            image = decode_rgb(pictures[i], max_source_pixels=caps.max_source_pixels, where="")
        out[row] = np.asarray(resize(image, width=size[1], height=size[0]))
        done[i] = row
    return out


@contextmanager
def _picture_errors(i: int) -> Iterator[None]:
    try:
        yield
    except ChatError as error:
        raise VideoError(f"frame {i + 1} of the video: {error.message}") from None


# ---- details


def _read_packets(data: bytes | memoryview, caps: VideoCaps) -> tuple[PacketIndex, np.ndarray, float, float]:
    """The index, the seconds at which frames are shown (float64, from 0), the duration and the frames per second."""
    with open_clip(data, caps) as clip:
        if clip.container.startswith(_EXPLICIT):
            return _read_index(clip, caps)
    with open_clip(data, caps, study=True) as clip:
        return _read_index(clip, caps)


def _read_index(clip: ClipReader, caps: VideoCaps) -> tuple[PacketIndex, np.ndarray, float, float]:
    codec = clip.stream.codec_context.name
    counted = clip.container == "avi" and codec in ("h264", "hevc")  # their packets have no times, only places
    pts: list[int] = []
    lengths: list[int] = []  # how long each packet's frame is shown, 0 where the file does not say
    keys: list[int] = []
    shown: list[bool] = []
    for number, packet in enumerate(clip.packets()):
        if number >= caps.max_source_frames:
            raise VideoError(f"the video has more than {caps.max_source_frames} frames")
        at = packet.pts if packet.pts is not None else packet.dts
        counted = counted or packet.pts is None
        pts.append(at if at is not None else (pts[-1] + 1 if pts else 0))
        lengths.append(packet.duration or 0)
        if packet.is_keyframe:
            keys.append(number)
        # Cut off by an edit list; broken off by the end of the file; VP8's frames that are only referred to.
        hidden = codec == "vp8" and not memoryview(packet)[0] & 0x10
        shown.append(not (packet.is_discard or packet.is_corrupt or hidden))
    order = np.argsort(np.array(pts, np.int64), kind="stable")
    packets = order[np.array(shown, bool)[order]]
    if not len(packets):
        raise VideoError(_UNDECODABLE)
    times = np.array(pts, np.int64)[packets]
    unit = float(clip.stream.time_base or 1)
    seconds = (times - times[0]) * unit
    duration, fps = _timing(seconds, lengths[packets[-1]] * unit, float(clip.stream.average_rate or 0))
    starts = keys or [0]
    index = PacketIndex(
        packets=packets,
        keys=tuple(starts),
        key_frames=tuple(np.searchsorted(times, [pts[key] for key in starts]).tolist()),
        n_packets=len(pts),
        counted=counted,
    )
    return index, seconds, duration, fps


def _timing(seconds: np.ndarray, last: float, rate: float) -> tuple[float, float]:
    """(duration, frames per second) of frames shown at `seconds`, the last for `last` if that is not 0.

    The rate that the file names is taken where it fits, because times rounded to milliseconds do not give it exactly.
    """
    n = len(seconds)
    duration = float(seconds[-1]) + (last or float(seconds[-1]) / max(n - 1, 1))
    if rate > 0 and abs(rate * duration - n) <= 0.5:
        return duration, rate
    if duration > 0:
        return duration, n / duration
    return n / (rate or FPS), rate or FPS


def _first_picture(data: bytes | memoryview, index: PacketIndex, caps: VideoCaps) -> VideoFrame:
    """The first frame that decodes at the start or at one of the first key frames."""
    with_keys = [0, *(frame for frame in index.key_frames[:_FIRST_TRIES] if 0 < frame < len(index.packets))]
    for number in with_keys:
        with open_clip(data, caps) as clip:
            for _, frame in clip.pick(index, plan_runs(index, [number])):
                return frame
    raise VideoError(_UNDECODABLE)


def _check_effort(info: VideoInfo, runs: Sequence[Run], caps: VideoCaps) -> None:
    n = sum(run.stop - run.start + 1 for run in runs)
    most = min(caps.max_decoded_frames, caps.max_decoded_pixels // (info.width * info.height))
    if n > most:
        raise VideoError(f"{n} frames of the video would have to be decoded, at most {most} are allowed")


def _upright(frame: VideoFrame) -> tuple[bool, int]:
    """(flip left-right first, then turn by so many degrees) as the frame's display matrix says; else nothing."""
    item = frame.side_data.get("DISPLAYMATRIX")
    if not isinstance(item, SideData):
        return False, 0
    # Nine int32 (a b u, c d v, x y w): a point (p, q) is shown at (a p + c q, b p + d q).
    a, b, _, c, d = np.frombuffer(bytes(item), np.int32, count=5).tolist()
    most = max(abs(a), abs(b), abs(c), abs(d), 1)
    # Sides that are less than half of the greatest are what is left of a turn that is not quite a quarter.
    sa, sb, sc, sd = (0 if 2 * abs(x) < most else (1 if x > 0 else -1) for x in (a, b, c, d))
    return _UPRIGHT.get((sa, sb, sc, sd), (False, 0))


def _to_image(frame: VideoFrame, info: VideoInfo, rgb: VideoReformatter) -> Image.Image:
    """A decoded frame as an upright RGB picture; transparency lies on white, as in still images. Raises VideoError."""
    has_alpha = any(component.is_alpha for component in frame.format.components)
    pixels = "rgba" if has_alpha else "rgb24"
    try:
        image = Image.fromarray(rgb.reformat(frame, format=pixels).to_ndarray())
    except av.MemoryError:
        raise
    except av.FFmpegError:
        raise VideoError(f"the pixels of the video ({frame.format.name}) cannot be read") from None
    if has_alpha:
        image = Image.alpha_composite(Image.new("RGBA", image.size, (255, 255, 255, 255)), image).convert("RGB")
    if info.mirrored:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return image.transpose(_TURNS[info.rotation]) if info.rotation else image
