"""Boxes drawn on a picture, with their labels, as a PNG."""

import bisect
import io
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import ImageDraw, ImageFont

from configs.serve import MediaConfig
from tokenization.cancel import Check, go_on
from tokenization.chat.boxes import Box
from tokenization.media.image import decode_rgb

FONT_DIRS = (
    Path("/usr/share/fonts"),
    Path("/usr/local/share/fonts"),
    Path("/System/Library/Fonts"),
    Path("/Library/Fonts"),
)
# Parts of file names, best first: faces made for reading on a screen that hold most of the world's characters.
PREFERRED = (
    "notosanscjk", "notosanssc", "sourcehansans", "wqy-microhei", "wqy-zenhei", "droidsansfallback", "pingfang",
    "arial unicode", "notosans-regular", "dejavusans.",
)  # fmt: skip
COLOURS = (
    (31, 119, 180), (214, 39, 40), (44, 160, 44), (255, 127, 14), (148, 103, 189), (23, 190, 207), (227, 119, 194),
    (140, 86, 75), (188, 189, 34), (0, 0, 0),
)  # fmt: skip

Font = ImageFont.FreeTypeFont
Area = tuple[int, int, int, int]  # x1, y1, x2, y2 in pixels


def draw_boxes(
    image: bytes,
    boxes: Sequence[Box],
    *,
    font_dirs: Sequence[Path] = FONT_DIRS,
    max_source_pixels: int = MediaConfig().max_source_pixels,
    check: Check = go_on,
) -> tuple[bytes, tuple[str, ...]]:
    """A PNG of `image`, an encoded file, upright, on white, with every box and its label; and notes for its reader.

    Boxes with the same `ref` have one colour; those without one have no label. A label that no font on this system can
    draw becomes `#` and the box's number from 1, and a note says so. Raises ChatError for bytes that are no picture.
    """
    canvas = decode_rgb(image, max_source_pixels=max_source_pixels, check=check)
    draw = ImageDraw.Draw(canvas)
    short = min(canvas.size)
    line = max(2, round(short / 150))
    fonts = _Fonts(font_dirs, max(12, round(short / 26)))
    order: dict[object, int] = {}
    keys = [box.ref or number for number, box in enumerate(boxes)]
    colours = [COLOURS[order.setdefault(key, len(order)) % len(COLOURS)] for key in keys]
    for box, colour in zip(boxes, colours, strict=True):
        _outline(draw, box, colour, line, canvas.size)
    taken: list[Area] = []
    unreadable: list[str] = []
    for number, (box, colour) in enumerate(zip(boxes, colours, strict=True), start=1):
        words = unicodedata.normalize("NFC", " ".join((box.ref or "").split()))
        label = "".join(char for char in words if unicodedata.category(char) not in {"Cc", "Cs", "Co", "Cn"})
        if not label:
            continue
        font = fonts.find(label)
        if font is None:
            unreadable.append(f"#{number} {label[:40]!r}")
            label, font = f"#{number}", fonts.plain
        taken.append(_label(draw, _fitted(label, font, canvas.width), font, colour, box, line, taken))
    out = io.BytesIO()
    canvas.save(out, format="PNG", compress_level=1)  # a quarter of the time, a seventh more bytes
    note = (
        "no font on this system has the characters of these labels, so their boxes are numbered instead: "
        + ", ".join(unreadable)
        + "; install a font that has them (for Chinese, Japanese and Korean: fonts-noto-cjk or fonts-wqy-zenhei)"
    )
    return out.getvalue(), (note,) if unreadable else ()


def _outline(
    draw: ImageDraw.ImageDraw, box: Box, colour: tuple[int, int, int], line: int, size: tuple[int, int]
) -> None:
    """The line in its colour with a thin light rim, so that it shows on any ground."""
    rim = max(1, line // 3)
    if box.kind == "box":
        x1, y1, x2, y2 = box.bounds
        right, bottom = min(max(x2 - 1, x1), size[0] - 1), min(max(y2 - 1, y1), size[1] - 1)
        area = min(x1, right), min(y1, bottom), right, bottom
        wide = area[0] - rim, area[1] - rim, area[2] + rim, area[3] + rim
        draw.rectangle(wide, outline="white", width=line + 2 * rim)
        draw.rectangle(area, outline=colour, width=line)
        return
    ring = [*box.points, *box.points[:2]]  # one corner more than closes it, so that the last joint is drawn too
    draw.line(ring, fill="white", width=line + 2 * rim, joint="curve")
    draw.line(ring, fill=colour, width=line, joint="curve")


def _fitted(label: str, font: Font, width: int) -> str:
    room = width - font.size * 0.7
    if font.getlength(label) <= room:
        return label
    most = bisect.bisect_right(range(1, len(label) + 1), room, key=lambda n: font.getlength(label[:n] + "..."))
    return label[: max(most, 1)] + "..."


def _label(
    draw: ImageDraw.ImageDraw, label: str, font: Font, colour: tuple[int, int, int], box: Box, line: int,
    taken: Sequence[Area],
) -> Area:  # fmt: skip
    """Draw the label where it hides least: above the box, inside a tall one, below a flat one. Gives its area."""
    pad = max(2, round(font.size / 5))
    ascent, descent = font.getmetrics()
    width, height = round(font.getlength(label)) + 2 * pad, ascent + descent + pad
    full_width, full_height = draw.im.size
    _, y1, x2, y2 = box.bounds
    x1 = min(box.points, key=lambda point: (point[1], point[0]))[0]  # the highest corner: there a quad begins
    within, below = (x1, y1 + line), (x1, y2)
    places = [(x1, y1 - height), *((within, below) if y2 - y1 > 4 * height else (below, within))]
    places += [(x2 - width, y1 - height), (x2 - width, y2 - line - height)]
    left_edge, top_edge = max(full_width - width, 0), max(full_height - height, 0)
    areas = [
        (left, top, left + width, top + height)
        for left, top in ((min(max(x, 0), left_edge), min(max(y, 0), top_edge)) for x, y in places)
    ]
    inside = [area for area, (_, y) in zip(areas, places, strict=True) if area[1] == y]
    free = [area for area in inside or areas if not any(_overlap(area, other) for other in taken)]
    area = (free or inside or areas)[0]
    red, green, blue = colour
    dark = 0.299 * red + 0.587 * green + 0.114 * blue < 150
    draw.rectangle((area[0], area[1], area[2] - 1, area[3] - 1), fill=colour)
    draw.text((area[0] + pad, area[1] + pad / 2), label, font=font, fill="white" if dark else "black")
    return area


def _overlap(a: Area, b: Area) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


class _Fonts:
    def __init__(self, font_dirs: Sequence[Path], size: int) -> None:
        plain = ImageFont.load_default(size)
        if not isinstance(plain, Font):
            raise RuntimeError("this Pillow was built without FreeType and cannot draw labels")
        self.plain = plain  # comes with Pillow: plain ASCII on every system
        self._opened = [plain]
        self._rest = _faces(font_dirs, size)

    def find(self, text: str) -> Font | None:
        for font in self._opened:
            if _covers(font, text):
                return font
        for font in self._rest:
            self._opened.append(font)
            if _covers(font, text):
                return font
        return None


def _faces(font_dirs: Sequence[Path], size: int) -> Iterator[Font]:
    """Every font file below the directories, the preferred ones first; of a collection the Simplified Chinese face."""
    files = [
        path
        for directory in font_dirs
        for path in directory.rglob("*")
        if path.suffix.lower() in {".ttf", ".otf", ".ttc"}
    ]
    for path in sorted(files, key=_rank):
        faces: list[Font] = []
        try:
            while len(faces) < (16 if path.suffix.lower() == ".ttc" else 1):
                faces.append(ImageFont.truetype(path, size, index=len(faces)))
        except OSError:  # past the last face; or a file that FreeType cannot use in this size
            pass
        if faces:
            yield next((face for face in faces if (face.getname()[0] or "").endswith(" SC")), faces[0])


def _rank(path: Path) -> tuple[int, bool, str]:
    name = path.name.lower()
    place = next((place for place, part in enumerate(PREFERRED) if part in name), len(PREFERRED))
    return place, "regular" not in name, str(path)


def _covers(font: Font, text: str) -> bool:
    """Whether every character has a glyph of its own: one that is drawn, and not as the box for unknown ones."""
    unknown = _glyph(font, "\U0010ffff")
    for char in set(text):
        invisible = char.isspace() or unicodedata.category(char) == "Cf" or "\ufe00" <= char <= "\ufe0f"
        if not invisible and _glyph(font, char) in (unknown, None):
            return False
    return True


def _glyph(font: Font, char: str) -> tuple[tuple[int, int], bytes] | None:
    mask = font.getmask(char)
    return (mask.size, bytes(mask)) if any(mask.size) and mask.getbbox() else None
