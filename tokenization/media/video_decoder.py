"""Opens one video with a restricted FFmpeg, reads its packets and decodes some of its frames."""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import av
import numpy as np
from av.bitstream import BitStreamFilterContext
from av.container import InputContainer
from av.packet import Packet
from av.stream import Disposition
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from configs.serve import MediaConfig
from tokenization.cancel import Check, go_on
from tokenization.chat.errors import ChatError
from tokenization.media.containers.opening import default_stream, open_container, read_packets, says_times
from tokenization.media.frame_sampling import UNBOUNDED
from tokenization.worker_memory import raise_if_memory

# Demuxers and decoders that may run, by FFmpeg's names. Playlists are not among them: those open what they name. PNG
# is not, as frames: its decoder unpacks texts and colour profiles, of which a kilobyte holds a megabyte, in each frame.
FORMATS = "mov,matroska,webm,avi,gif,mpegts,mpeg,flv,asf,ogg,ivf,yuv4mpegpipe"
DECODERS = (
    "h264,hevc,vvc,vp8,vp9,libdav1d,av1,mpeg1video,mpeg2video,mpegvideo,mpeg4,msmpeg4v1,msmpeg4v2,msmpeg4,h261,h263,"
    "h263p,flv,vp6,vp6a,vp6f,theora,wmv1,wmv2,wmv3,vc1,mjpeg,gif,prores,dnxhd,ffv1,huffyuv,ffvhuff,utvideo,"
    "rawvideo,qtrle,dvvideo,cinepak,svq1,svq3,rv10,rv20,rv30,rv40,cfhd"
)
PACKET_SLACK = 1 << 20  # bytes: Matroska lets up to 16 of each packet stand once in the header
THREADS = 4  # of one decoder; more would wait for each other on the few packets of a run
SHARED = "the packets of the video hold more bytes than its file: packets share them"
UNDECODABLE = "no frame of the video can be decoded"
GROWING = "the frames of the video grow on the way, and decoding them takes more work than its bytes allow"
# Those that pass over a frame which no other depends on when told so packet by packet, and say truly which those are.
_SKIPPING = ("h264", "hevc", "mpeg4", "mpeg2video", "mpeg1video")
# dav1d waits for its threads when it is flushed or freed, and now and then for good where frames are still inside: a
# packet of 32 frames, read again and again, held two of two processes within 50 s (docs/log.md, 2026-11-23).
_ALONE = ("libdav1d",)
# FFmpeg's VP9 among threads of frames ends the process where a frame that needs others comes first behind a flush.
_BY_SLICES = ("vp9",)
_UNPACKS = "mpeg4_unpack_bframes"
_MOST_STUDIED = "32"  # streams of a container in which FFmpeg decodes the first frames of each
_NOT_MOVING = Disposition.attached_pic | Disposition.timed_thumbnails | Disposition.still_image
_MOST_PIXELS = 8192 * 4320


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PacketIndex:
    """Frames are numbered as they are shown, packets as they lie in the stream, the same at every reading."""

    packets: np.ndarray  # int64 [frames]: the packet of each frame
    keys: tuple[int, ...]  # packets at which decoding can start, ascending; at least one
    key_frames: tuple[int, ...]  # for each key: the first frame that needs no packet before it
    n_packets: int
    depth: int = 0  # packets that are decoded before a frame, and shown after it, at most
    interlaced: bool = False  # a frame may be spread over two packets
    paired: bool = False  # it is, and the packet behind it may hold its second field
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


class VideoReader:
    """An open video. Its packets are read from the file once, and kept: they may be gone through again."""

    def __init__(
        self, container: InputContainer, stream: VideoStream, studied: bool, max_bytes: int, check: Check = go_on
    ) -> None:
        """max_bytes: of all its packets, which are kept."""
        self.container = container.format.name
        self.stream = stream
        self.studied = studied  # FFmpeg has decoded some frames to know their order
        self.tried = 0  # packets that were decoded to know which of the first ones give frames
        self.errors = 0  # packets that the decoder refused since `restart`
        self._left = UNBOUNDED  # pixels
        self._left_bytes = max_bytes  # of packets that are not read yet
        self._source = container
        self._context = stream.codec_context
        self._options = dict(stream.codec_context.options)  # which are gone from there once it is open
        # DivX packs a frame behind another one, into whose packet a place holder follows: a seek would come between.
        self._unpack = BitStreamFilterContext(_UNPACKS, stream) if self.codec == "mpeg4" else None
        self._check = check
        self._kept: list[Packet[VideoStream]] = []
        self._whole = False  # all packets are kept

    def __del__(self) -> None:
        self._source.close()  # at once: what holds it may be garbage that nobody collects for long

    @property
    def codec(self) -> str:
        """FFmpeg's name of the decoder."""
        return self._context.name

    def nbytes(self, run: PacketRun) -> int:
        """Of the packets of a run, once all have been read."""
        return sum(packet.size for packet in self._kept[run.start : run.stop + 1])

    def expect(self, depth: int) -> None:
        """Frames to be kept back until an earlier one comes, where H.264 says fewer: call it before any is decoded."""
        if self.codec == "h264" and depth:
            self._options["has_b_frames"] = str(depth)
            self._context.options = self._options

    def restart(self, check: Check, max_decoded: int = UNBOUNDED) -> None:
        """Decode from nothing. More than `max_decoded` pixels of all frames raise a ChatError where they come out."""
        self.errors, self._left, self._check = 0, max_decoded, check
        if self._context.is_open:
            self._context.flush_buffers()

    def packets(self) -> "Iterator[Packet[VideoStream]]":
        """Packets that hold something, in file order. A file that breaks off ends there."""
        if not self._whole:
            yield from self._demux()
            return
        for packet in self._kept:
            self._check()
            yield packet

    def _demux(self) -> "Iterator[Packet[VideoStream]]":
        for packet in read_packets(self._source, self.stream):
            self._check()
            if packet.size:
                self._left_bytes -= packet.size
                if self._left_bytes < 0:
                    raise ChatError(SHARED)
                for one in self._unpacked(packet):
                    self._kept.append(one)
                    yield one
        self._whole = True

    def _unpacked(self, packet: "Packet[VideoStream]") -> "Sequence[Packet[VideoStream]]":
        if self._unpack is None:
            return (packet,)
        try:
            return cast("Sequence[Packet[VideoStream]]", self._unpack.filter(packet))
        except av.FFmpegError as error:
            raise_if_memory(error)
            return ()

    def decode(self, index: PacketIndex, runs: Sequence[PacketRun]) -> Iterator[VideoFrame]:
        """Frames as they are shown, the packet's number as `pts`; some that no wanted one needs are left out."""
        wanted = {int(index.packets[frame]) for run in runs for frame in run.frames}
        skips = self._context.name in _SKIPPING and not (index.interlaced or index.counted)
        packets = enumerate(self.packets())
        for run in runs:
            for number, packet in packets:
                if number >= run.start:
                    packet.pts = number  # decoders hand it on; PyAV's own way, `opaque`, loses numbers used twice
                    self._context.skip_frame = "NONREF" if skips and number not in wanted else "DEFAULT"
                    yield from self._feed(packet)
                if number == run.stop:
                    break
            # Frames that wait for their turn come out now: nothing that follows is needed for them. Where each packet
            # is a picture by itself nothing waits for long, and the decoder's threads are better left running.
            if not index.all_keys:
                yield from self._feed(None)
        if index.all_keys:
            yield from self._feed(None)

    def alone(self, start: int, n: int) -> Iterator[VideoFrame]:
        """Of `n` packets and none before them, once all have been read; also of those that an edit list cuts off."""
        self._context.skip_frame = "DEFAULT"
        for packet in self._kept[start : start + n]:
            yield from self._feed(cast("Packet[VideoStream]", Packet(bytes(packet))))
        yield from self._feed(None)

    def _renew(self) -> None:
        """A decoder that has seen nothing: one that is flushed still knows that something came before."""
        old, new = self._context, cast(VideoCodecContext, VideoCodecContext.create(self.codec, "r"))
        new.extradata, new.codec_tag, new.options = old.extradata, old.codec_tag, self._options
        new.thread_count, new.thread_type = old.thread_count, old.thread_type
        self._context = new

    def given(self, stop: int) -> list[int]:
        """The packets up to `stop` that give frames, as these come, once all have been read."""
        self._renew()
        found = []
        for number, packet in enumerate(self._kept[: stop + 1]):
            self._check()
            packet.pts = number
            found += [frame.pts for frame in self._feed(packet) if frame.pts is not None]
        self.tried += stop + 1
        return found + [frame.pts for frame in self._feed(None) if frame.pts is not None]

    def pick(self, index: PacketIndex, runs: Sequence[PacketRun]) -> Iterator[tuple[int, VideoFrame]]:
        """(frame number, frame) for each frame that the runs are for and that decodes.

        A packet without a picture (a second field, a repeat) gives the frame before it, at the end only without errors.
        """
        if index.counted:
            yield from self._count(index, runs)
            return
        numbers = {int(packet): frame for frame, packet in enumerate(index.packets.tolist())}
        waiting = deque((frame, run.start) for run in runs for frame in run.frames)
        last: tuple[int, VideoFrame] | None = None  # packet, frame
        for frame in self.decode(index, runs):
            packet = frame.pts
            shown = numbers.get(packet) if packet is not None else None
            if packet is None or shown is None:
                continue
            while waiting and waiting[0][0] < shown:
                missed, start = waiting.popleft()
                if last is not None and last[0] >= start:
                    yield missed, last[1]
            if waiting and waiting[0][0] == shown:
                waiting.popleft()
                yield shown, frame
            last = packet, frame
        for missed, start in waiting:
            if last is not None and last[0] >= start and not self.errors:
                yield missed, last[1]

    def _count(self, index: PacketIndex, runs: Sequence[PacketRun]) -> Iterator[tuple[int, VideoFrame]]:
        self._renew()
        wanted = {frame for run in runs for frame in run.frames}
        for number, frame in enumerate(self.decode(index, runs)):
            if number in wanted:
                yield number, frame
                wanted.discard(number)
            if not wanted:
                return

    def _feed(self, packet: "Packet[VideoStream] | None") -> list[VideoFrame]:
        """None instead of a packet: what is still inside, after which the decoder starts from nothing."""
        try:
            frames = self._context.decode(packet)
        except av.FFmpegError as error:
            raise_if_memory(error)
            self.errors += 1
            return []
        finally:
            if packet is None:
                self._context.flush_buffers()
        self._left -= sum(frame.width * frame.height for frame in frames)
        if self._left < 0:
            raise ChatError(GROWING)
        return frames


def plan_runs(index: PacketIndex, frames: Sequence[int]) -> tuple[PacketRun, ...]:
    """The fewest packets that give `frames`: each from the key before it, unless decoding passes by anyway."""
    if index.counted:
        return (PacketRun(start=0, stop=index.n_packets - 1, frames=tuple(sorted(set(frames)))),)
    ways = []
    for frame in set(frames):
        packet = int(index.packets[frame])
        stop = min(packet + index.paired, index.n_packets - 1)
        key = bisect_right(index.keys, packet) - 1
        while key >= 0 and index.key_frames[key] > frame:  # shown before its own key frame: it needs the key before
            key -= 1
        ways.append((index.keys[key] if key >= 0 else 0, frame, stop))
    runs: list[PacketRun] = []
    for start, frame, stop in sorted(ways):
        last = runs[-1] if runs else None
        # A packet that is a picture by itself costs nothing but itself.
        if last is not None and start <= last.stop + (0 if index.all_keys else 1):
            runs[-1] = PacketRun(start=last.start, stop=max(last.stop, stop), frames=(*last.frames, frame))
        else:
            runs.append(PacketRun(start=start, stop=stop, frames=(frame,)))
    return tuple(runs)


def most_pixels(limits: MediaConfig) -> int:
    """Of one frame as stored: no more than of a picture."""
    return min(limits.max_source_pixels, _MOST_PIXELS)


def open_video(
    data: bytes | memoryview, limits: MediaConfig, *, threads: int = THREADS, check: Check = go_on
) -> VideoReader:  # fmt: skip
    """Open without protocols, formats that name other files, or rare codecs. Raises ChatError by the header alone.

    Of containers that do not say the order and the times of their packets FFmpeg decodes the first frames. `check` is
    called between packets.
    """
    max_pixels = most_pixels(limits)
    allowed = {"max_pixels": str(max_pixels), "codec_whitelist": DECODERS}
    studied = not says_times(data)
    study = {"max_streams": _MOST_STUDIED} if studied else {"codec_whitelist": "none"}
    container = open_container(data, "video", FORMATS, {**allowed, **study}, check)
    try:
        stream = _moving_stream(container, max_pixels)
    except BaseException:
        container.close()
        raise
    # An H.264 decoder that may only guess how far frames are out of order then waits for as long as any may be.
    stream.codec_context.options = {**allowed, "strict": "1"} if stream.codec_context.name == "h264" else allowed
    if stream.codec_context.name in _ALONE:
        threads = 1
    stream.codec_context.thread_count = threads
    among = "SLICE" if stream.codec_context.name in _BY_SLICES else "AUTO"
    stream.thread_type = among if threads > 1 else "NONE"
    return VideoReader(container, stream, studied, len(data) + PACKET_SLACK, check)


def _moving_stream(container: InputContainer, max_pixels: int) -> VideoStream:
    """The default one of those that move, else the first. Raises ChatError, also for frames of more pixels."""
    streams = [stream for stream in container.streams.video if not stream.disposition & _NOT_MOVING]
    stream = default_stream(streams, "video stream", DECODERS)
    width, height = stream.width, stream.height
    if width * height > max_pixels:
        raise ChatError(
            f"the video has {width} x {height} = {width * height} pixels a frame, at most {max_pixels} are allowed"
        )
    return stream
