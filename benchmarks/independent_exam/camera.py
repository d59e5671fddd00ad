"""What a phone's camera does to a picture: white balance, vignetting, blur and noise."""

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]  # [height, width, 3], RGB


def photographed(drawn: Pixels, rng: np.random.Generator) -> Pixels:
    """The picture as a phone takes it in a room: every fault at a strength that `rng` draws."""
    height, width = drawn.shape[:2]
    light = drawn.astype(np.float32) * rng.uniform(0.94, 1.05, 3).astype(np.float32)
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    centre = rng.uniform(-0.3, 0.3, 2)
    far = (x - centre[0]) ** 2 + (y - centre[1]) ** 2
    light *= (rng.uniform(0.92, 1.05) - rng.uniform(0.06, 0.18) * far)[..., None].astype(np.float32)
    light = blurred(light, rng.uniform(0.5, 1.5) * min(width, height) / 400)
    coarse = rng.standard_normal(((height + 1) // 2, (width + 1) // 2, 3), dtype=np.float32)
    light += coarse.repeat(2, axis=0).repeat(2, axis=1)[:height, :width] * rng.uniform(1, 4)
    light += rng.standard_normal(light.shape, dtype=np.float32) * rng.uniform(3, 9)
    return np.clip(light, 0, 255).astype(np.uint8)


def blurred(light: npt.NDArray[np.float32], sigma: float) -> npt.NDArray[np.float32]:
    """By a Gaussian of `sigma` pixels; what is beyond an edge is as the edge."""
    reach = max(1, int(np.ceil(3 * sigma)))
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / max(sigma, 1e-3)) ** 2).astype(np.float32)
    weights /= weights.sum()
    for axis in (0, 1):
        n = light.shape[axis]
        padded = np.pad(light, [(reach, reach) if a == axis else (0, 0) for a in range(3)], mode="edge")
        light = sum(weight * np.take(padded, np.arange(k, k + n), axis=axis) for k, weight in enumerate(weights))
    return light
