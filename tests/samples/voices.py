"""Voices as browsers record them: a MediaRecorder writes in one go, and goes back to nothing that it has written.

None of these files is a browser's own. PyAV's FFmpeg writes them in the containers and codecs of Firefox and Safari;
Chromium itself records in tests/pages.
"""

import struct
from pathlib import Path

import av

RATE = 48_000  # of Firefox's and Safari's recordings


class OneWay:
    """A file that can be written and in which nobody can seek."""

    def __init__(self) -> None:
        self.content = bytearray()

    def write(self, data: bytes) -> int:
        self.content += data
        return len(data)


def recorded(sound: Path, container: str, codec: str, **options: str) -> bytes:
    sink = OneWay()
    with av.open(str(sound)) as source, av.open(sink, "w", format=container, options=options) as out:
        stream = out.add_stream(codec, rate=RATE, layout="mono")
        assert isinstance(stream, av.AudioStream)
        for frame in source.decode(audio=0):
            frame.pts = None
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return bytes(sink.content)


def firefox(sound: Path) -> bytes:
    """Ogg with Opus at 48 kHz: no header says how long it is."""
    content = recorded(sound, "ogg", "libopus")
    assert content[:4] == b"OggS" and b"OpusHead\x01\x01" in content[:64]
    return content


def safari(sound: Path) -> bytes:
    """Fragmented MP4 with AAC: the length in `mvhd` is 0, and every second is a `moof` of its own."""
    flags = {"movflags": "empty_moov+default_base_moof", "frag_duration": "1000000"}
    content = recorded(sound, "mp4", "aac", **flags)
    at = content.index(b"mvhd") + 20  # behind its version, two times and the time scale; ISO 14496-12, 8.2.2
    assert struct.unpack(">I", content[at : at + 4]) == (0,) and content.count(b"moof") > 1
    assert content.index(b"moov") < content.index(b"moof") < content.index(b"mdat")
    return content
