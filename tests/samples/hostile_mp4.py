"""MP4s whose tables claim what their bytes do not hold: each as a file's bytes."""

import io
import struct
import zlib

import av

from tests.samples.videos import B_FRAMES, make_clip


def box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(content), kind) + content


def compressed(header: bytes) -> bytes:
    """A `cmov`, as old QuickTime files have it, of that header."""
    return box(b"cmov", box(b"dcom", b"zlib") + box(b"cmvd", struct.pack(">I", len(header)) + zlib.compress(header)))


def with_table(data: bytes, kind: bytes, content: bytes) -> bytes:
    """The first table of that type with other content; all boxes around it grow or shrink, and offsets stay right.

    Only for files whose header lies behind their samples, as libav writes them.
    """
    at = data.index(kind) - 4
    (size,) = struct.unpack_from(">I", data, at)
    changed = bytearray(data[:at] + box(kind, content) + data[at + size :])
    more = 8 + len(content) - size
    for outer in (b"moov", b"trak", b"mdia", b"minf", b"stbl"):
        start = data.rindex(outer, 0, at) - 4 if outer in data[:at] else -1
        if start >= 0 and start + struct.unpack_from(">I", data, start)[0] >= at + size:
            struct.pack_into(">I", changed, start, struct.unpack_from(">I", data, start)[0] + more)
    return bytes(changed)


def equal_samples(n: int, size: int = 192) -> bytes:
    """Row 4: a valid clip of two plain frames of 192 bytes; its table of sizes claims `n` samples, all in one chunk."""
    data = make_clip(2, codec="rawvideo", container="mov", pixels="rgb24", size=(8, 8))
    data = with_table(data, b"stsz", struct.pack(">III", 0, size, n))
    return with_table(data, b"stsc", struct.pack(">IIIII", 0, 1, 1, n, 1))


def shared_samples(n: int) -> bytes:
    """A valid clip of two plain frames of 12 KiB; its tables name the first of them `n` times."""
    data = make_clip(2, codec="rawvideo", container="mov", pixels="rgb24", size=(64, 64)).replace(b"edts", b"free")
    (first,) = struct.unpack_from(">I", data, data.index(b"stco") + 12)
    data = with_table(data, b"stsz", struct.pack(">III", 0, 3 * 64 * 64, n))
    data = with_table(data, b"stsc", struct.pack(">IIIII", 0, 1, 1, 1, 1))
    data = with_table(data, b"stts", struct.pack(">IIII", 0, 1, n, 512))
    return with_table(data, b"stco", struct.pack(f">II{n}I", 0, n, *[first] * n))


def shown_last_to_first(n: int) -> bytes:
    """H.264 with one key, of which the last packet is the frame that is shown first."""
    data = make_clip(n, key_every=n, options=B_FRAMES).replace(b"edts", b"free")
    return with_table(data, b"ctts", struct.pack(">IIIiIi", 1 << 24, 2, n - 1, 0, 1, -600 * n))


def edits(n: int, samples: int) -> bytes:
    """`n` entries of an edit list, each of which shows all of a clip's samples."""
    data = make_clip(samples, size=(16, 16))
    (duration,) = struct.unpack_from(">I", data, data.index(b"elst") + 12)
    return with_table(
        data, b"edts", box(b"elst", struct.pack(">II", 0, n) + struct.pack(">III", duration, 0, 65536) * n)
    )


def fragments(samples: int, *, count: int | None = None) -> bytes:
    """A fragmented clip; `count`: what its first fragment claims, without a field for each sample."""
    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4", options={"movflags": "frag_every_frame+empty_moov"}) as output:
        source = av.open(io.BytesIO(make_clip(samples, size=(16, 16))), "r")
        stream = output.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                output.mux(packet)
        source.close()
    data = bytearray(sink.getvalue())
    if count is not None:
        at = data.index(b"trun") + 4
        flags = struct.unpack_from(">I", data, at)[0] & 1
        struct.pack_into(">II", data, at, flags, count)
    return bytes(data)


def grouped(n: int) -> bytes:
    """HEVC with open groups of pictures, `n` samples of which a table calls each a key."""
    data = make_clip(4, codec="libx265", size=(64, 64), options={"x265-params": "log-level=none:open-gop=1"})
    groups = box(b"sgpd", struct.pack(">I4sII", 1 << 24, b"sync", 1, 1) + bytes([21]))
    groups += box(b"sbgp", struct.pack(">I4sIII", 0, b"sync", 1, n, 1))
    at = data.index(b"stts") - 4
    return with_table(data, b"stts", data[at + 8 : at + 8 + 16])[: at + 24] + groups + data[at + 24 :]
