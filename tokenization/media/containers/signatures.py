"""What a file of another kind looks like by its first bytes, and the field that takes it: for errors alone."""

from tokenization.chat.parts import Kind

# (where, what stands there, kind). A RIFF says at its eighth byte what it holds; an ISO file has its brand there.
_SIGNATURES: tuple[tuple[int, bytes, Kind], ...] = (
    (0, b"\xff\xd8\xff", "image"),
    (0, b"\x89PNG", "image"),
    (0, b"GIF8", "image"),
    (8, b"WEBP", "image"),
    (4, b"ftypM4A", "audio"),
    (4, b"ftypqt", "video"),
    (4, b"ftypiso", "video"),
    (4, b"ftypmp4", "video"),
    (4, b"ftypM4V", "video"),
    (4, b"ftypavc1", "video"),
    (4, b"ftyp3gp", "video"),
    (0, b"\x1aE\xdf\xa3", "video"),
    (8, b"AVI ", "video"),
    (0, b"FLV", "video"),
    (8, b"WAVE", "audio"),
    (0, b"fLaC", "audio"),
    (0, b"OggS", "audio"),
    (0, b"ID3", "audio"),
    (0, b"\xff\xfb", "audio"),
)
_CALLED = {"image": "an image", "video": "a video", "audio": "a sound"}


def meant_as(data: bytes | memoryview, kind: Kind) -> str:
    """`; it looks like a video, which is sent as 'video_url' ...` for what is no `kind`, or nothing."""
    head = bytes(data[:16])
    found = next((kind for at, mark, kind in _SIGNATURES if head.startswith(mark, at)), kind)
    if found == kind or (kind, found) == ("audio", "video"):  # a video is heard where a sound is asked for
        return ""
    return f"; it looks like {_CALLED[found]}, which is sent as '{found}_url', on /chat as '{found}'"
