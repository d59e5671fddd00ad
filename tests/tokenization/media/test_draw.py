"""Boxes on a picture: where the lines lie, that labels can be read, what happens without a font."""

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.tables import each_of
from tokenization.chat.boxes import Box, find_boxes
from tokenization.media.draw import COLOURS, FONT_DIRS, _covers, _faces, draw_boxes

GREY = (90, 120, 100)


def ground(width: int = 400, height: int = 300) -> bytes:
    return png(Image.new("RGB", (width, height), GREY))


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()


def pixels(drawing: tuple[bytes, tuple[str, ...]]) -> np.ndarray:
    with Image.open(io.BytesIO(drawing[0])) as image:
        assert image.format == "PNG"
        assert image.mode == "RGB"
        return np.asarray(image)  # uint8 [height, width, 3]


def is_colour(image: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    return np.asarray((image == colour).all(-1))


def box(x1: int, y1: int, x2: int, y2: int, ref: str | None = None) -> Box:
    return Box(ref=ref, kind="box", points=((x1, y1), (x2, y2)), picture=0)


def has_chinese() -> bool:
    return any(_covers(face, "狗") for face in _faces(FONT_DIRS, 16))


def test_the_line_lies_on_the_box() -> None:
    image = pixels(draw_boxes(ground(), [box(100, 60, 300, 200)]))
    ys, xs = np.nonzero(is_colour(image, COLOURS[0]))
    assert (xs.min(), ys.min(), xs.max(), ys.max()) == (100, 60, 299, 199)
    assert (image[130, 200] == GREY).all()  # nothing is drawn inside
    assert (image[0, 0] == GREY).all()


def test_the_line_grows_with_the_picture() -> None:
    def width(side: int) -> int:
        image = pixels(draw_boxes(ground(side, side), [box(side // 4, side // 4, side // 2, side // 2)]))
        return int(is_colour(image, COLOURS[0])[side // 3, : side // 3].sum())

    assert width(150) == 2
    assert width(1500) == 10


def test_a_light_rim_lies_on_both_sides_of_the_line() -> None:
    image = pixels(draw_boxes(ground(1500, 1500), [box(400, 400, 900, 900)]))
    row = ["line" if one == COLOURS[0] else "rim" if one == (255,) * 3 else "" for one in map(tuple, image[600, :650])]
    assert [name for name, before in zip(row[1:], row, strict=False) if name != before] == ["rim", "line", "rim", ""]
    assert row.count("rim") == 2 * (row.count("line") // 3)


def test_a_label_has_a_ground_of_its_colour_and_letters_on_it() -> None:
    plain = pixels(draw_boxes(ground(), [box(100, 60, 300, 200)]))
    drawing = draw_boxes(ground(), [box(100, 60, 300, 200, "dog")])
    label = pixels(drawing)[:60, 100:]
    assert drawing[1] == ()
    assert is_colour(label, COLOURS[0]).sum() > 200
    assert is_colour(label, (255, 255, 255)).sum() > 20
    assert not is_colour(plain[:55], COLOURS[0]).any()


def test_equal_words_have_one_colour_and_others_another() -> None:
    boxes = find_boxes(
        "<ref>dog</ref><box>(100,300),(200,400)</box><ref>cat</ref><box>(400,300),(500,400)</box>"
        "<ref>dog</ref><box>(700,300),(800,400)</box><box>(100,700),(200,800)</box>",
        [(1000, 1000)],
    )
    image = pixels(draw_boxes(ground(1000, 1000), boxes))
    middles = [(box.bounds[0], (box.bounds[1] + box.bounds[3]) // 2) for box in boxes]
    found = [tuple(int(v) for v in image[y, x + 2]) for x, y in middles]
    assert found == [COLOURS[0], COLOURS[1], COLOURS[0], COLOURS[0]]
    nameless = pixels(draw_boxes(ground(), [box(10, 10, 50, 50), box(100, 100, 150, 150)]))
    assert is_colour(nameless, COLOURS[0]).any()
    assert is_colour(nameless, COLOURS[1]).any()


def test_labels_of_neighbours_do_not_hide_each_other() -> None:
    same = (100, 100, 300, 200)
    image = pixels(draw_boxes(ground(), [box(*same, "first"), box(*same, "second")]))
    one, two = is_colour(image, COLOURS[0]), is_colour(image, COLOURS[1])
    alone = is_colour(pixels(draw_boxes(ground(), [box(*same, "first")])), COLOURS[0])
    assert one[:100].sum() == alone[:100].sum() > 200
    assert two.sum() > 500


def test_a_quad_is_drawn_as_four_lines() -> None:
    quad = Box(ref=None, kind="quad", points=((200, 50), (300, 150), (200, 250), (100, 150)), picture=0)
    mine = is_colour(pixels(draw_boxes(ground(), [quad])), COLOURS[0])
    assert mine[96:104, 246:254].any()  # the middle of an edge
    assert not mine[52:60, 105:115].any()  # the corner of the upright rectangle round it


def test_a_chinese_label_is_drawn_or_numbered_with_a_note() -> None:
    drawing = draw_boxes(ground(), [box(10, 100, 200, 200, "dog"), box(220, 100, 390, 200, "一只狗")])
    if has_chinese():
        assert drawing[1] == ()
    else:
        assert len(drawing[1]) == 1
    assert is_colour(pixels(drawing)[:100, 220:], COLOURS[1]).sum() > 100


def test_without_a_font_the_box_is_numbered_and_the_note_says_so() -> None:
    boxes = [box(10, 100, 200, 200, "dog"), box(220, 100, 390, 200, "一只狗")]
    drawing = draw_boxes(ground(), boxes, font_dirs=())
    (note,) = drawing[1]
    assert "#2 '一只狗'" in note
    assert "dog" not in note
    assert "fonts-noto-cjk" in note
    same = draw_boxes(ground(), [boxes[0], box(220, 100, 390, 200, "#2")], font_dirs=())
    assert drawing[0] == same[0]


def test_the_embedded_font_does_not_pass_unknown_letters_as_its_own(tmp_path: Path) -> None:
    for label in ("狗", "dog 狗", "\U0001f415", "\uac15", "caf\u00e9"):
        assert draw_boxes(ground(), [box(1, 1, 9, 9, label)], font_dirs=[tmp_path / "none"])[1]
    for label in ("dog", "A (1/2) & co. #~|", "a\u200bb"):
        assert not draw_boxes(ground(), [box(1, 1, 9, 9, label)], font_dirs=[])[1]


def test_a_file_that_is_no_font_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "notosanscjk.ttc").write_bytes(b"no font")
    (tmp_path / "empty.ttf").write_bytes(b"")
    assert draw_boxes(ground(), [box(1, 1, 9, 9, "狗")], font_dirs=[tmp_path])[1]


def test_a_long_label_is_shortened_to_the_picture() -> None:
    image = pixels(draw_boxes(ground(120, 90), [box(20, 40, 60, 80, "a very long label, longer than the picture")]))
    assert image.shape == (90, 120, 3)
    label = is_colour(image[:38], COLOURS[0])
    assert 90 < label.any(0).sum() <= 120


def test_a_label_of_blanks_and_controls_is_none() -> None:
    nameless = draw_boxes(ground(), [box(50, 50, 90, 90)])
    assert draw_boxes(ground(), [box(50, 50, 90, 90, "\n \x00\x07")])[0] == nameless[0]
    two_lines = draw_boxes(ground(), [box(50, 50, 90, 90, "a\n\nb")])
    assert two_lines[0] == draw_boxes(ground(), [box(50, 50, 90, 90, "a b")])[0]


def test_files_are_read_upright_and_on_white() -> None:
    sideways = Image.new("RGB", (400, 300), GREY)
    exif = sideways.getexif()
    exif[0x0112] = 6  # turned by a quarter
    file = io.BytesIO()
    sideways.save(file, format="JPEG", exif=exif)
    assert pixels(draw_boxes(file.getvalue(), [])).shape == (400, 300, 3)
    clear = Image.new("RGBA", (20, 30), (1, 2, 3, 0))
    assert (pixels(draw_boxes(png(clear), [])) == 255).all()


@each_of("data", [b"", b"no picture", b"\x89PNG\r\n\x1a\n", b"%PDF-1.4", b"<svg/>"])
def test_bytes_that_are_no_picture_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not an image"):
        draw_boxes(data, [])


def test_a_file_cut_short_is_refused() -> None:
    noise = png(Image.effect_noise((200, 200), 50))
    with pytest.raises(ValueError, match="damaged or incomplete"):
        draw_boxes(noise[:5000], [])


NUMBER = st.integers(-10, 1100)


@settings(max_examples=60)
@given(
    st.tuples(st.integers(1, 80), st.integers(1, 80)),
    st.lists(st.tuples(NUMBER, NUMBER, NUMBER, NUMBER, st.text(max_size=8)), max_size=4),
    st.booleans(),
)
def test_any_boxes_can_be_drawn_on_any_picture(
    size: tuple[int, int], values: list[tuple[int, int, int, int, str]], quad: bool
) -> None:
    text = "".join(
        f"<ref>{ref}</ref>"
        + (f"<quad>({a},{b}),({c},{b}),({c},{d}),({a},{d})</quad>" if quad else f"<box>({a},{b}),({c},{d})</box>")
        for a, b, c, d, ref in values
    )
    drawing = draw_boxes(ground(*size), find_boxes(text, [size]), font_dirs=())
    assert pixels(drawing).shape == (size[1], size[0], 3)
