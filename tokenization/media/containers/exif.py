"""The EXIF orientation of a picture."""

import struct

from PIL import ExifTags, Image


def orientation_of(image: Image.Image, data: bytes, parts: int) -> int:
    """The EXIF orientation, 1 to 8; 1 where there is none. Raises what Pillow does for a damaged tag.

    parts: of the file that are looked through for it, at most.
    """
    if image.format == "PNG" and "exif" not in image.info:
        late = _late_png_exif(data, parts)
        if late is not None:
            image.info["exif"] = b"Exif\0\0" + late
    # The base class's getexif reads what the header holds; PNG's own would decode the whole image.
    value = Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1)
    return value if isinstance(value, int) and 2 <= value <= 8 else 1


def _late_png_exif(data: bytes, parts: int) -> bytes | None:
    """The eXIf chunk of a PNG, which may also follow the pixels, where opening does not look."""
    at = 8
    for _ in range(parts):
        if at + 8 > len(data):
            break
        length, name = struct.unpack_from(">I4s", data, at)
        if name == b"eXIf":
            return data[at + 8 : at + 8 + length]
        at += 12 + length
    return None
