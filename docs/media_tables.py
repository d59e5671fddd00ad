"""Which containers and codecs the server reads, for api.md: what it allows, of what the FFmpeg inside PyAV has."""

import textwrap

import av

from tokenization.media import audio_decoder, video_decoder


def media_tables() -> dict[str, str]:
    """By the name of a generated part. Names are FFmpeg's own, as `ffmpeg -decoders` and `-demuxers` print them."""
    return {
        "video codecs": _table(video_decoder.FORMATS, video_decoder.DECODERS),
        "sound codecs": _table(audio_decoder.FORMATS, audio_decoder.DECODERS),
    }


def _table(formats: str, decoders: str) -> str:
    held = {name for joined in av.formats_available for name in joined.split(",")}
    rows = {
        "containers": sorted(name for name in formats.split(",") if name in held),
        "decoders": sorted(name for name in decoders.split(",") if _decodes(name)),
    }
    lines = (textwrap.wrap(f"{what}: {', '.join(f'`{name}`' for name in names)}.", 98) for what, names in rows.items())
    return "\n".join("- " + "\n  ".join(wrapped) for wrapped in lines)


def _decodes(name: str) -> bool:
    try:
        return av.Codec(name, "r").is_decoder
    except av.codec.codec.UnknownCodecError:
        return False
