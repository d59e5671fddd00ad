"""Videos and sounds that cost what real ones cost: a camera that moves over a photograph, and a voice-like tone."""

import io
import wave

import av
import numpy as np
import numpy.typing as npt

from server.loadtest.traffic.pictures import photo

FRAMES_A_SECOND = 10
SAMPLES_A_SECOND = 16_000


def video(rng: np.random.Generator, seconds: float, width: int, height: int) -> bytes:
    """An MP4 in H.264: a view of even sizes that pans over a larger picture."""
    width, height = width - width % 2, height - height % 2
    scene = photo(rng, width * 3 // 2, height * 3 // 2)
    count = max(2, round(seconds * FRAMES_A_SECOND))
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=FRAMES_A_SECOND, options={"preset": "veryfast"})
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
    return wav(0.25 * np.asarray(tone) * syllables + 0.004 * rng.standard_normal(len(times)))


def wav(samples: npt.NDArray[np.float64]) -> bytes:
    """Samples from -1 to 1 as a WAV."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(SAMPLES_A_SECOND)
        writer.writeframes((np.clip(samples, -1, 1) * 32_767).astype("<i2").tobytes())
    return file.getvalue()
