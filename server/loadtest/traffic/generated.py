"""Pictures, videos and sounds that cost what real ones cost to send and to decode, and drawings that are known.

Plain noise is five times as large as a JPEG of a photograph, and one flat colour is nothing at all.
"""

import io
import wave

import av
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

Pixels = npt.NDArray[np.float32]

FRAMES_A_SECOND = 10
SAMPLES_A_SECOND = 16_000
ROUGHNESS = 0.6  # of an octave's amplitude by its size: 1 is as smooth as clouds
THINGS = 14  # that stand in front
GRAIN = 4.0  # a sensor's noise, of 255
QUALITY = 90
# Without x264's tree of macroblocks, whose assembler reads memory beyond small pictures: the same video differed.
ENCODER = {"preset": "veryfast", "x264-params": "mbtree=0"}

# What the embedded demo model names without a fault when it is drawn large on a plain ground.
SHAPES = ("circle", "square", "triangle")
COLOURS = {"red": (237, 28, 36), "green": (0, 128, 0), "blue": (0, 0, 255), "yellow": (255, 242, 0)}
QUESTION = "What is in this picture?"


def photo(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Light and colour that change at every scale, some things with edges in front of them, and grain."""
    longer = max(width, height)
    octaves = [longer >> step for step in range(1, 12) if longer >> step >= 2]
    light = noise(rng, width, height, octaves) * 150 + 128
    warm, cold = (noise(rng, width, height, octaves[:4]) * 70 for _ in range(2))
    rgb = np.stack([light + warm, light - (warm + cold) / 2, light + cold], axis=-1)
    rgb += rng.standard_normal((height, width, 3), dtype=np.float32) * GRAIN
    picture = Image.fromarray(np.clip(rgb, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    for _ in range(THINGS):
        x, y = rng.uniform(0, width), rng.uniform(0, height)
        reach = longer * rng.uniform(0.02, 0.12)
        colour = tuple(int(value) for value in rng.integers(20, 235, 3))
        form = draw.ellipse if rng.random() < 0.5 else draw.rectangle
        form((x - reach, y - reach / 2, x + reach, y + reach), fill=colour)
    return picture


def noise(rng: np.random.Generator, width: int, height: int, octaves: list[int]) -> Pixels:
    """Smooth noise of several sizes, the large ones stronger, about -1 to 1: [height, width]."""
    total = np.zeros((height, width), np.float32)
    for octave in octaves:
        grid = rng.standard_normal((height // octave + 2, width // octave + 2), dtype=np.float32)
        smooth = Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC)
        total += np.asarray(smooth) * octave**ROUGHNESS
    return total / np.float32(sum(octave**ROUGHNESS for octave in octaves))


def encoded(picture: Image.Image, name: str) -> bytes:
    """As `jpeg`, `png` or `webp`, at a photographer's quality."""
    file = io.BytesIO()
    picture.save(file, name, quality=QUALITY)
    return file.getvalue()


def drawing(rng: np.random.Generator) -> tuple[Image.Image, str]:
    """One large shape on a plain light ground, and what it is: `red circle`."""
    shape = SHAPES[int(rng.integers(len(SHAPES)))]
    name = list(COLOURS)[int(rng.integers(len(COLOURS)))]
    side = int(rng.integers(240, 321))
    ground = tuple(int(value) for value in rng.integers(205, 226, 3))
    picture = Image.new("RGB", (side, side), ground)
    draw = ImageDraw.Draw(picture)
    reach = side * rng.uniform(0.2, 0.3)
    x, y = (side / 2 + rng.uniform(-0.1, 0.1) * side for _ in range(2))
    box = (x - reach, y - reach, x + reach, y + reach)
    if shape == "circle":
        draw.ellipse(box, fill=COLOURS[name])
    elif shape == "square":
        draw.rectangle(box, fill=COLOURS[name])
    else:
        draw.polygon([(x, y - reach), (x - reach, y + reach), (x + reach, y + reach)], fill=COLOURS[name])
    return picture, f"{name} {shape}"


def video(rng: np.random.Generator, seconds: float, width: int, height: int) -> bytes:
    """An MP4 in H.264: a view of even sizes that pans over a larger picture."""
    width, height = width - width % 2, height - height % 2
    scene = photo(rng, width * 3 // 2, height * 3 // 2)
    count = max(2, round(seconds * FRAMES_A_SECOND))
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=FRAMES_A_SECOND, options=ENCODER)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.thread_count = 1
        for number in range(count):
            share = number / (count - 1)
            left, top = int(share * (scene.width - width)), int(share * (scene.height - height))
            view = scene.crop((left, top, left + width, top + height))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.asarray(view), format="rgb24")))
        container.mux(stream.encode(None))
    return file.getvalue()


def sound(rng: np.random.Generator, seconds: float) -> bytes:
    """A mono WAV of 16 bits at 16 kHz: syllables of a low tone with its harmonics, and a breath of noise."""
    times = np.arange(round(seconds * SAMPLES_A_SECOND)) / SAMPLES_A_SECOND
    pitch = rng.uniform(90, 220) * (1 + 0.05 * np.sin(2 * np.pi * rng.uniform(0.3, 0.8) * times))
    phase = 2 * np.pi * np.cumsum(pitch) / SAMPLES_A_SECOND
    tone = sum(np.sin(phase * harmonic) * rng.uniform(0.3, 1) / harmonic for harmonic in range(1, 9))
    syllables = np.clip(np.sin(2 * np.pi * rng.uniform(2, 4) * times), 0, None) ** 0.5
    samples = 0.25 * np.asarray(tone) * syllables + 0.004 * rng.standard_normal(len(times))
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(SAMPLES_A_SECOND)
        writer.writeframes((np.clip(samples, -1, 1) * 32_767).astype("<i2").tobytes())
    return file.getvalue()
