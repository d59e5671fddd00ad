"""The EXIF orientation of a picture: where it stands in a file, and how a picture of it becomes upright."""

import struct

from PIL import ExifTags, Image

# By orientation, but 1: what makes the stored picture upright.
TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


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


def stored_box(box: tuple[int, int, int, int], size: tuple[int, int], orientation: int) -> tuple[int, int, int, int]:
    """Where a box of the upright picture, which is of that size, lies in the stored one."""
    width, height = size
    left, top, right, bottom = box
    if orientation in (2, 3, 6, 7):  # mirrored along the upright x axis
        left, right = width - right, width - left
    if orientation in (3, 4, 7, 8):  # and along y
        top, bottom = height - bottom, height - top
    return (top, left, bottom, right) if orientation >= 5 else (left, top, right, bottom)


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
