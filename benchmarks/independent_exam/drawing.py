"""Draws scenes and numbers with Skia, in five looks, and encodes them as PNG or JPEG."""

from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import skia

from benchmarks.independent_exam import palettes
from benchmarks.independent_exam.camera import Pixels, photographed
from benchmarks.independent_exam.outlines import Outline
from benchmarks.independent_exam.palettes import Rgb
from benchmarks.independent_exam.scenes import Scene, Thing

FONTS = (
    ("font_hanken_grotesk", "HankenGrotesk-Regular.otf"),
    ("font_hanken_grotesk", "HankenGrotesk-Bold.otf"),
    ("font_manrope", "Manrope-Regular.ttf"),
    ("font_manrope", "Manrope-Bold.ttf"),
    ("font_source_serif_pro", "SourceSerifPro-Regular.otf"),
    ("font_source_serif_pro", "SourceSerifPro-Bold.otf"),
)


def encoded(scene: Scene) -> tuple[str, bytes]:
    """The media type and the bytes of a file."""
    rng = np.random.default_rng(scene.detail)
    image = _as_image(pixels(scene, rng))
    if scene.look == "phone noise":
        kind, quality = "jpeg", int(rng.integers(40, 81))
    elif scene.look == "paint program" or rng.random() < 0.6:
        kind, quality = "png", 100
    else:
        kind, quality = "jpeg", int(rng.integers(80, 96))
    data = image.encodeToData(skia.EncodedImageFormat.kPNG if kind == "png" else skia.EncodedImageFormat.kJPEG, quality)
    return f"image/{kind}", bytes(data)


def pixels(scene: Scene, rng: np.random.Generator) -> Pixels:
    """What the scene looks like, a camera's faults included."""
    surface = skia.Surface(scene.width, scene.height)
    canvas = surface.getCanvas()
    _draw_ground(canvas, scene, rng)
    for thing in scene.things:
        _draw_thing(canvas, thing, scene.look, rng)
    if scene.number:
        _draw_number(canvas, scene, rng)
    drawn = np.asarray(surface.makeImageSnapshot().toarray(colorType=skia.kRGBA_8888_ColorType))[..., :3]
    return photographed(drawn, rng) if scene.look == "phone noise" else np.ascontiguousarray(drawn)


def _as_image(drawn: Pixels) -> Any:
    opaque = np.dstack([drawn, np.full(drawn.shape[:2], 255, np.uint8)])
    return skia.Image.fromarray(np.ascontiguousarray(opaque), colorType=skia.kRGBA_8888_ColorType)


def _colour(rgb: Rgb, alpha: int = 255) -> int:
    return int(skia.ColorSetARGB(alpha, *rgb))


def _draw_ground(canvas: Any, scene: Scene, rng: np.random.Generator) -> None:
    canvas.clear(_colour(scene.ground))
    width, height = scene.width, scene.height
    if scene.look in ("gradient", "phone noise"):
        amount = 0.16 if scene.look == "gradient" else 0.09
        ends = [palettes.mixed(scene.ground, end, amount) for end in ((255, 255, 255), (0, 0, 0))]
        angle = rng.uniform(0, 2 * np.pi)
        reach = np.array([np.cos(angle), np.sin(angle)]) * max(width, height) / 2
        middle = np.array([width, height]) / 2
        points = [skia.Point(*map(float, middle - reach)), skia.Point(*map(float, middle + reach))]
        canvas.drawPaint(skia.Paint(Shader=skia.GradientShader.MakeLinear(points, [_colour(end) for end in ends])))
    if scene.look == "outline" and rng.random() < 0.4:  # squared paper
        line = skia.Paint(Color=_colour(palettes.mixed(scene.ground, (90, 120, 170), 0.16)), StrokeWidth=1)
        step = int(rng.integers(14, 30))
        for x in range(step, width, step):
            canvas.drawLine(x, 0, x, height, line)
        for y in range(step, height, step):
            canvas.drawLine(0, y, width, y, line)


def _path(parts: Outline) -> Any:
    builder = skia.PathBuilder()
    builder.setFillType(skia.PathFillType.kEvenOdd)
    for part in parts:
        builder.addPolygon([skia.Point(float(x), float(y)) for x, y in part], True)
    return builder.detach()


def _draw_thing(canvas: Any, thing: Thing, look: str, rng: np.random.Generator) -> None:
    path, smooth = _path(thing.parts), look != "paint program"
    fill = skia.Paint(Color=_colour(thing.rgb), AntiAlias=smooth)
    if look == "gradient":
        _draw_shadow(canvas, path, thing, rng)
        fill.setShader(_shading(thing, rng))
    canvas.drawPath(path, fill)
    if thing.stroke:
        pen = skia.Paint(Color=_colour(thing.ink), AntiAlias=smooth, Style=skia.Paint.kStroke_Style)
        pen.setStrokeWidth(thing.stroke)
        pen.setStrokeJoin(skia.Paint.kRound_Join)
        canvas.drawPath(path, pen)


def _shading(thing: Thing, rng: np.random.Generator) -> Any:
    left, top, right, bottom = thing.box
    colours = [_colour(end) for end in palettes.lighter_and_darker(thing.colour, thing.rgb)]
    if rng.random() < 0.4:
        middle = skia.Point(left + (right - left) * 0.4, top + (bottom - top) * 0.35)
        return skia.GradientShader.MakeRadial(middle, (right - left) * 0.7, colours)
    ends = [skia.Point(left, top), skia.Point(right if rng.random() < 0.5 else left, bottom)]
    return skia.GradientShader.MakeLinear(ends, colours)


def _draw_shadow(canvas: Any, path: Any, thing: Thing, rng: np.random.Generator) -> None:
    if rng.random() < 0.5:
        return
    left, _, right, _ = thing.box
    soft = skia.Paint(Color=_colour((0, 0, 0), 60), AntiAlias=True)
    soft.setMaskFilter(skia.MaskFilter.MakeBlur(skia.kNormal_BlurStyle, (right - left) * 0.03))
    canvas.save()
    canvas.translate((right - left) * 0.03, (right - left) * 0.04)
    canvas.drawPath(path, soft)
    canvas.restore()


@cache
def _typeface(package: str, name: str) -> Any:
    found = skia.Typeface.MakeFromFile(str(files(package) / "files" / name))
    if found is None:
        raise FileNotFoundError(f"Skia reads no font in {package}: {name}")
    return found


def _draw_number(canvas: Any, scene: Scene, rng: np.random.Generator) -> None:
    """Printed digits, at least a third of the shorter side high, in ink that stands out."""
    font = skia.Font(_typeface(*FONTS[int(rng.integers(len(FONTS)))]), 100)
    bounds = skia.Rect()
    number = scene.number
    font.measureText(number, skia.TextEncoding.kUTF8, bounds)
    short = min(scene.width, scene.height)
    scale = short * rng.uniform(0.33, 0.6) / bounds.height()
    scale = min(scale, scene.width * 0.85 / bounds.width())
    room = np.array([scene.width - bounds.width() * scale, scene.height - bounds.height() * scale])
    at = room * rng.uniform(0.2, 0.8, 2)
    dark = sum(scene.ground) < 380
    ink = _colour((248, 248, 245) if dark else (22, 24, 32))
    canvas.save()
    canvas.translate(float(at[0]), float(at[1]))
    canvas.scale(float(scale), float(scale))
    canvas.rotate(float(rng.uniform(-3, 3)) if scene.look == "phone noise" else 0.0)
    pen = skia.Paint(Color=ink, AntiAlias=scene.look != "paint program")
    font.setEdging(skia.Font.Edging.kAntiAlias if scene.look != "paint program" else skia.Font.Edging.kAlias)
    canvas.drawString(number, -bounds.left(), -bounds.top(), font, pen)
    if scene.look == "outline":
        pen.setStyle(skia.Paint.kStroke_Style)
        pen.setColor(_colour((190, 60, 40)))
        pen.setStrokeWidth(2.0)
        canvas.drawString(number, -bounds.left(), -bounds.top(), font, pen)
    canvas.restore()
