"""Pictures of shapes and numbers: what is said to be there is there, where it is said to be, in its colour."""

from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from demo.answers import COLOURS, SHAPES
from demo.colours import MORE, PURE, draw_colour, lab, margin, name_of, parse, tells_apart
from demo.grounds import choose_ground
from demo.lettering import font_paths, number_mask, paint_number
from demo.pictures import Look, Picture, crowd_kinds, draw_number, draw_scene, random_kinds, random_size
from demo.shapes import Paint, draw_form, paint_form
from demo.wear import lit_picture, worn_picture
from tests.tables import each_of

pytestmark = pytest.mark.slow


def pixels(image: Image.Image) -> npt.NDArray[np.uint8]:
    return np.asarray(image)


def drawn_box(image: Image.Image, ground: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """The box of all pixels that are not of the ground."""
    other = (pixels(image) != np.array(ground, np.uint8)).any(-1)
    rows, columns = np.flatnonzero(other.any(1)), np.flatnonzero(other.any(0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def test_sizes_stay_in_range_and_are_mostly_middling() -> None:
    rng = np.random.default_rng(0)
    sizes = np.array([random_size(rng) for _ in range(500)])
    assert sizes.min() >= 64 and sizes.max() <= 900 and sizes.max() > 600 and sizes.min() < 100
    ratios = sizes[:, 0] / sizes[:, 1]
    assert 0.49 < ratios.min() < 0.6 and 1.7 < ratios.max() < 2.05
    assert ((sizes.min(1) >= 100) & (sizes.max(1) <= 500)).mean() > 0.6


@each_of("shape", SHAPES)
@each_of("smooth", [True, False])
def test_box_is_tight(shape: str, smooth: bool) -> None:
    rng = np.random.default_rng(1)
    for _ in range(25):
        size, at = float(rng.uniform(20, 150)), (float(rng.uniform(1, 40)), float(rng.uniform(1, 40)))
        image = Image.new("RGB", (200, 200), (255, 255, 255))
        line = (0, 0, 0) if rng.random() < 0.5 else None
        paint = Paint(
            first=(255, 0, 0), second=(240, 0, 0), pattern="linear", line=line, line_width=0.03, smooth=smooth
        )
        form = draw_form(rng, shape)
        box = paint_form(rng, image, form, paint, at, size)
        assert np.abs(np.subtract(box, drawn_box(image, (255, 255, 255)))).max() <= 1
        wanted = (*at, at[0] + form.extent[0] * size, at[1] + form.extent[1] * size)
        assert np.abs(np.subtract(box, wanted)).max() <= 1.5


def test_a_ring_shows_the_ground_and_a_circle_does_not() -> None:
    rng = np.random.default_rng(2)
    for shape, colour in (("ring", (255, 255, 255)), ("circle", (0, 0, 255))):
        image = Image.new("RGB", (100, 100), (255, 255, 255))
        paint = Paint(first=(0, 0, 255), second=(0, 0, 255), pattern="plain", line=None, line_width=0, smooth=True)
        x1, y1, x2, y2 = paint_form(rng, image, draw_form(rng, shape), paint, (10, 10), 80)
        assert image.getpixel((round((x1 + x2) / 2), round((y1 + y2) / 2))) == colour


def test_things_lie_apart_and_inside() -> None:
    rng = np.random.default_rng(3)
    for index in range(400):
        size, count = random_size(rng), index % 10
        picture = draw_scene(rng, size, count)
        assert picture.image.size == size and picture.image.mode == "RGB" and picture.number is None
        assert len(picture.things) == count
        for place, thing in enumerate(picture.things):
            x1, y1, x2, y2 = thing.box
            assert 0 <= x1 < x2 <= size[0] and 0 <= y1 < y2 <= size[1]
            assert max(x2 - x1, y2 - y1) >= 0.08 * min(size)
            for other in picture.things[:place]:
                across = max(x1 - other.box[2], other.box[0] - x2)
                down = max(y1 - other.box[3], other.box[1] - y2)
                assert max(across, down) >= 1.5


def test_one_thing_takes_12_to_85_percent() -> None:
    rng = np.random.default_rng(4)
    shares = []
    for _ in range(300):
        size = random_size(rng)
        x1, y1, x2, y2 = draw_scene(rng, size, 1).things[0].box
        shares.append(max(x2 - x1, y2 - y1) / min(size))
    # A thing is at least 12 pixels, more than 12 % of the smallest pictures; a box is tight to a pixel.
    assert min(shares) > 0.11 and max(shares) < 0.88 and max(shares) > 0.7
    assert np.mean([0.19 < share < 0.62 for share in shares]) > 0.7


def test_kinds_are_drawn_in_order() -> None:
    kinds = [("star", "red"), ("circle", "white"), ("cross", "black"), ("ring", "yellow")]
    picture = draw_scene(np.random.default_rng(5), (300, 200), 4, kinds=kinds)
    assert [(thing.shape, thing.colour) for thing in picture.things] == kinds
    with pytest.raises(ValueError, match="3 things, but kinds of 4"):
        draw_scene(np.random.default_rng(5), (300, 200), 3, kinds=kinds)


def test_a_crowd_shares_any_number_of_one_kind() -> None:
    """Four of a shape in several colours beside one or two others, too, which random kinds hardly ever have."""
    rng = np.random.default_rng(0)
    found = Counter[int]()
    for shapes, colours in ((list(zip(*crowd_kinds(rng, 6), strict=True))) for _ in range(600)):
        if len({*colours}) > 2:
            found[max(Counter(shapes).values())] += 1
    assert all(found[n] > 30 for n in range(2, 7))


def test_random_kinds_coincide_sometimes() -> None:
    rng = np.random.default_rng(6)
    drawn = [random_kinds(rng, 4) for _ in range(400)]
    assert all(shape in SHAPES and colour in COLOURS for kinds in drawn for shape, colour in kinds)
    alike = np.mean([len(set(kinds)) == 1 for kinds in drawn])
    one_shape = np.mean([len({shape for shape, _ in kinds}) == 1 < len(set(kinds)) for kinds in drawn])
    assert 0.05 < alike < 0.3 and 0.08 < one_shape < 0.35


@each_of("colour", COLOURS)
def test_shades_are_nearest_to_their_own_name(colour: str) -> None:
    rng = np.random.default_rng(7)
    for shade in (*parse(PURE[colour]), *parse(MORE[colour])):
        assert name_of(shade) == colour
    for _ in range(200):
        shade = draw_colour(rng, colour)
        assert name_of(shade) == colour and margin(shade, colour) > 0


def test_other_colours_have_no_name() -> None:
    for shade in ((255, 0, 255), (255, 192, 203), (0, 255, 255), (139, 69, 19), (128, 128, 128)):
        assert name_of(shade) is None


@each_of("colour", COLOURS)
def test_drawn_pixels_bear_the_name(colour: str) -> None:
    rng = np.random.default_rng(8)
    named = []
    for _ in range(30):
        picture = draw_scene(rng, (200, 160), 1, kinds=[("square", colour)])
        x1, y1, x2, y2 = picture.things[0].box
        value = picture.image.getpixel((int((x1 + x2) / 2), int((y1 + y2) / 2)))
        assert isinstance(value, tuple)
        named.append(name_of((int(value[0]), int(value[1]), int(value[2]))))
    assert named == [colour] * 30


def test_grounds_let_things_be_seen() -> None:
    rng = np.random.default_rng(9)
    for colour in COLOURS:
        for _ in range(50):
            shade = draw_colour(rng, colour)
            ground = choose_ground(rng, [shade])
            assert tells_apart(lab([shade])[0], lab([ground.first, ground.second]))
    assert not tells_apart(lab([(255, 255, 255)])[0], lab([(250, 250, 240)]))
    assert not tells_apart(lab([(139, 0, 0)])[0], lab([(60, 0, 0)]))
    assert tells_apart(lab([(255, 255, 0)])[0], lab([(255, 255, 255)]))


def test_grounds_vary() -> None:
    rng = np.random.default_rng(10)
    grounds = [choose_ground(rng, [(255, 0, 0)]) for _ in range(400)]
    white = np.mean([ground.first == (255, 255, 255) for ground in grounds])
    dark = np.mean([sum(ground.first) < 200 for ground in grounds])
    assert 0.25 < white < 0.6 and dark > 0.1
    assert {ground.pattern for ground in grounds} == {"plain", "linear", "radial", "speckle", "paper"}


def test_numbers_lie_inside() -> None:
    rng = np.random.default_rng(11)
    for _ in range(150):
        size = random_size(rng)
        digits = str(rng.integers(10 ** int(rng.integers(1, 5))))
        image = Image.new("RGB", size, (255, 255, 255))
        box = paint_number(rng, image, digits, (0, 0, 0))
        found = drawn_box(image, (255, 255, 255))
        assert found == box
        assert 0 <= box[0] < box[2] <= size[0] and 0 <= box[1] < box[3] <= size[1]
        assert box[3] - box[1] >= 5


def test_numbers_are_read_from_the_picture() -> None:
    rng = np.random.default_rng(12)
    picture = draw_number(rng, (120, 90), "407")
    assert picture.number == "407" and picture.things == () and picture.image.size == (120, 90)
    assert pixels(picture.image).std() > 5
    for digits in ("", "12345", "1a", "²"):
        with pytest.raises(ValueError, match="not one to four digits"):
            draw_number(rng, (120, 90), digits)


def test_different_digits_look_different() -> None:
    for seed in range(10):
        drawn = {bytes(number_mask(np.random.default_rng(seed), (200, 200), digit).tobytes()) for digit in "0123456789"}
        assert len(drawn) == 10


def test_fonts_are_listed_once_and_without_odd_ones() -> None:
    names = [path.rsplit("/", 1)[-1] for path in font_paths()]
    assert len(set(names)) == len(names)
    assert not [name for name in names if "symbol" in name.lower() or "emoji" in name.lower()]


def test_varied_scenes_hold_what_plain_ones_would_and_their_boxes_are_tight() -> None:
    rng = np.random.default_rng(14)
    for number in range(120):
        picture = draw_scene(rng, (200, 150), number % 6, varied=True)
        assert len(picture.things) == number % 6
        for x1, y1, x2, y2 in (thing.box for thing in picture.things):
            assert 0 <= x1 < x2 <= 200 and 0 <= y1 < y2 <= 150


@each_of("shape", SHAPES)
def test_looks_keep_the_box_and_open_squares_and_triangles_only(shape: str) -> None:
    rng = np.random.default_rng(15)
    for look in (Look(line=0.06), Look(shaded=40), Look(shaded=40, radial=True), Look(hollow=0.08)):
        image = Image.new("RGB", (120, 120), (255, 255, 255))
        plain = Paint(first=(0, 0, 200), second=(0, 0, 200), pattern="plain", line=None, line_width=0, smooth=True)
        drawn = draw_form(rng, shape)
        paint, form = look.on(shape, "blue", plain, drawn, 90)
        box = paint_form(rng, image, form, paint, (12, 12), 90)
        assert np.abs(np.subtract(box, drawn_box(image, (255, 255, 255)))).max() <= 1
        opened = look.hollow > 0 and shape in ("square", "triangle")
        assert (form is not drawn) == opened
        if opened and shape == "square":
            assert image.getpixel((round((box[0] + box[2]) / 2), round((box[1] + box[3]) / 2))) == (255, 255, 255)
        shades = {tuple(pixel) for pixel in pixels(image).reshape(-1, 3).tolist()}
        assert ((0, 0, 0) in shades) == bool(look.line)
        least = 5 if look.radial and shape == "ring" else 20  # whose middle, where it is darkest, is not there
        assert look.shaded == 0 or len({shade for shade in shades if shade[:2] == (0, 0)}) > least


def test_poor_light_keeps_size_and_leaves_most_pictures_alone() -> None:
    rng = np.random.default_rng(16)
    image = Image.new("RGB", (90, 60), (200, 30, 30))
    lit = [lit_picture(rng, image) for _ in range(120)]
    changed = [one for one in lit if one is not image]
    assert 8 <= len(changed) <= 40 and {one.size for one in changed} == {(90, 60)}
    for one in changed:
        red, green, blue = pixels(one).reshape(-1, 3).mean(0)
        assert red > 2 * max(green, blue) and pixels(one).std(axis=(0, 1)).max() > 2


def test_wear_keeps_size_and_colour_names() -> None:
    rng = np.random.default_rng(13)
    same = 0
    for _ in range(150):
        picture = draw_scene(rng, (160, 120), 1, kinds=[("square", "red")])
        worn = worn_picture(rng, picture.image)
        assert worn.size == (160, 120) and worn.mode == "RGB"
        same += worn is picture.image
        x1, y1, x2, y2 = picture.things[0].box
        middle = pixels(worn)[int((y1 + y2) / 2) - 2 :, int((x1 + x2) / 2) - 2 :][:4, :4].reshape(-1, 3).mean(0)
        assert middle[0] > 1.5 * max(middle[1], middle[2])
    assert 40 <= same <= 85


@pytest.mark.parametrize("kind", ["scene", "number"])
def test_one_seed_gives_one_picture(kind: str) -> None:
    def draw(seed: int) -> tuple[Picture, bytes]:
        rng = np.random.default_rng(seed)
        size = random_size(rng)
        picture = draw_scene(rng, size, 3) if kind == "scene" else draw_number(rng, size, "52")
        return picture, worn_picture(rng, picture.image).tobytes()

    for seed in range(20):
        (first, worn), (second, again) = draw(seed), draw(seed)
        assert first.things == second.things and first.image.tobytes() == second.image.tobytes() and worn == again
    assert draw(1)[1] != draw(2)[1]
