"""Opens one sound with a restricted FFmpeg and decodes its frames."""

from collections.abc import Iterator
from contextlib import contextmanager

import av
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer

from tokenization.cancel import Check, go_on
from tokenization.chat.errors import ChatError
from tokenization.media.containers.opening import default_stream, open_container, read_packets
from tokenization.media.video_decoder import FORMATS as VIDEO_FORMATS
from tokenization.worker_memory import raise_if_memory

# Demuxers and decoders that may run, by FFmpeg's names. Playlists are not among them: those open what they name.
FORMATS = "wav,w64,aiff,caf,au,flac,mp3,aac,amr,ac3," + VIDEO_FORMATS
DECODERS = (
    "mp3,mp3float,mp2,mp2float,mp1,mp1float,aac,aac_latm,vorbis,opus,libopus,flac,alac,ac3,eac3,amrnb,amrwb,"
    "libopencore_amrnb,libopencore_amrwb,wmav1,wmav2,wmapro,speex,adpcm_ms,adpcm_ima_wav,adpcm_ima_qt,adpcm_swf,"
    "pcm_u8,pcm_s8,pcm_s16le,pcm_s16be,pcm_s24le,pcm_s24be,pcm_s32le,pcm_s32be,pcm_f32le,pcm_f32be,pcm_f64le,pcm_f64be,"
    "pcm_s8_planar,pcm_s16le_planar,pcm_s16be_planar,pcm_s24le_planar,pcm_s32le_planar,pcm_alaw,pcm_mulaw,"
    "pcm_u16le,pcm_u16be,pcm_bluray,pcm_dvd"
)
MAX_RATE = 768_000  # samples per second; the filter that takes a sound to another rate grows with it
MAX_CHANNELS = 64
_MAX_PLANES = 7  # PyAV counts planes up to a null pointer, which FFmpeg does not put after more of them
_MAX_FRAME = 1 << 20  # samples of each channel in one frame
_PACKETS_PER_SECOND = 1000  # allowed for each second of sound: a packet of 1 ms is shorter than any that is written
_VALUES_PER_SECOND = 384_000  # of all channels: 8 at 48 kHz, 2 at 192 kHz, 1 at 384 kHz, however well it is packed
_MAX_CHANGES = 32  # of rate or layout on the way: each has FFmpeg build a filter
_SAYS_LENGTH = ("mov", "flac", "ogg", "wav")  # containers whose length is no guess from the bit rate


class AudioTooLong(ChatError):
    """A sound that lasts longer than it may. `length` ends a message: what its file tells of it, or nothing."""

    def __init__(self, max_seconds: float, told: float) -> None:
        self.length = f": {told:.0f} s, as its file says" if told > max_seconds else ""
        super().__init__(f"the sound lasts more than the allowed {max_seconds:g} s{self.length}")


class SoundReader:
    def __init__(self, container: InputContainer, stream: AudioStream, nbytes: int, check: Check = go_on) -> None:
        self._source = container
        self._stream = stream
        self._context = stream.codec_context
        self._nbytes = nbytes
        self._check = check
        self._packets = 0
        self._errors = 0  # packets that the decoder refused
        self._changes = 0
        self._packer: tuple[object, AudioResampler] | None = None

    @property
    def claimed_seconds(self) -> float:
        """The header's length, 0 where it tells none; of plain samples no more than the bytes can hold."""
        stream, name = self._stream, self._source.format.name
        if not name.startswith(_SAYS_LENGTH) or not stream.duration or not stream.time_base:
            return 0.0
        seconds = float(stream.duration * stream.time_base)
        # Headers written before the end was known claim gigabytes; plain samples cannot outlast their bytes.
        if stream.codec_context.name.startswith("pcm_") and stream.codec_context.bit_rate:
            seconds = min(seconds, self._nbytes * 8 / stream.codec_context.bit_rate)
        return max(seconds, 0.0)

    def check_length(self, seconds: float, max_seconds: float) -> None:
        """Raises AudioTooLong, with the length that the file tells, be it a guess from the bit rate."""
        # Sums of many lengths are off by a little.
        if seconds <= max_seconds + 1e-6:
            return
        raise AudioTooLong(max_seconds, (self._source.duration or 0) / av.time_base)

    def frames(self, max_seconds: float) -> Iterator[AudioFrame]:
        """All frames that decode, in order, of 1 to 64 channels (at most 7 planes) at 1 to 768,000 Hz, none empty.

        Damage is passed over; a file that breaks off ends. Raises ChatError for other frames, above `max_seconds`, for
        more work than an honest sound of that length is, and at the end where less than half could be decoded.
        """
        seconds, values, rate = 0.0, 0, 0
        for frame in self._decode(int((max_seconds + 1) * _PACKETS_PER_SECOND)):
            channels = frame.layout.nb_channels
            check_shape(frame.sample_rate, channels)
            seconds += frame.samples / frame.sample_rate
            self.check_length(seconds, max_seconds)
            values += frame.samples * channels
            if values > (max_seconds + 1) * _VALUES_PER_SECOND:
                raise ChatError("the sound has more samples than the server decodes")
            if frame.sample_rate != rate:
                rate = frame.sample_rate
                self._count_change()
            yield from self._pack(frame)
        # An answer about a small part looks like one about the whole.
        if seconds and (2 * seconds < self.claimed_seconds or 2 * self._errors > self._packets):
            raise ChatError("the sound is damaged: less than half of it can be decoded")

    def _decode(self, max_packets: int) -> Iterator[AudioFrame]:
        for number, packet in enumerate(read_packets(self._source, self._stream)):
            self._check()
            if number > max_packets:
                raise ChatError("the sound is split into too many packets")
            # To a decoder an empty packet is the end of the sound; in a file it is nothing.
            if packet.size:
                self._packets += 1
                yield from (frame for frame in self._feed(packet) if frame.samples > 0)
        yield from (frame for frame in self._feed(None) if frame.samples > 0)

    def _feed(self, packet: "av.Packet[AudioStream] | None") -> list[AudioFrame]:
        """None: what is still inside."""
        try:
            return self._context.decode(packet)
        except av.FFmpegError as error:
            raise_if_memory(error)
            self._errors += 1
            return []

    def _pack(self, frame: AudioFrame) -> list[AudioFrame]:
        """The same sound, in one plane where it has more planes than PyAV reads safely."""
        if not frame.format.is_planar or frame.layout.nb_channels <= _MAX_PLANES:
            return [frame]
        shape = (frame.format.name, frame.layout.name, frame.sample_rate)
        if self._packer is None or self._packer[0] != shape:
            self._count_change()
            self._packer = shape, AudioResampler(format="flt")
        try:
            return self._packer[1].resample(frame)
        except av.FFmpegError as error:
            raise_if_memory(error)
            raise ChatError("the channels of the sound cannot be told apart") from None

    def _count_change(self) -> None:
        self._changes += 1
        if self._changes > _MAX_CHANGES:
            raise ChatError("the sound changes its rate or its channels too often")


def check_shape(rate: int, channels: int) -> None:
    """Raises ChatError unless `rate` is 1 to MAX_RATE and `channels` 1 to MAX_CHANNELS."""
    if not 1 <= rate <= MAX_RATE:
        raise ChatError(f"the sound has {rate} samples a second, it must have 1 to {MAX_RATE}")
    if not 1 <= channels <= MAX_CHANNELS:
        raise ChatError(f"the sound has {channels} channels, it must have 1 to {MAX_CHANNELS}")


@contextmanager
def open_sound(data: bytes | memoryview, check: Check = go_on) -> Iterator[SoundReader]:
    """Open without protocols, formats that name other files, or rare codecs. Raises ChatError by the header alone.

    `check` is called between packets.
    """
    with open_container(data, "audio", FORMATS, {"codec_whitelist": "none"}, check) as container:
        stream = default_stream(container.streams.audio, "sound track", DECODERS)
        # 0: only decoding tells.
        check_shape(stream.codec_context.sample_rate or 1, stream.codec_context.channels or 1)
        stream.codec_context.options = {"codec_whitelist": DECODERS, "max_samples": str(_MAX_FRAME)}
        stream.codec_context.thread_count = 1
        stream.codec_context.thread_type = "NONE"
        yield SoundReader(container, stream, len(data), check)
