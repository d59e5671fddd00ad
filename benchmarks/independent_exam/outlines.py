"""The outlines of shapes as polygons, so fine that curves look round: what is drawn, and what boxes are taken from."""

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]  # [n, 2]: x and y, y downwards
Outline = tuple[Points, ...]  # closed; the second is a hole in the first

_ROUND = 144  # corners of a circle
_TURNS = {"square": 12.0, "triangle": 18.0, "star": 25.0, "cross": 12.0}  # degrees to each side, for most things


def outline(shape: str, rng: np.random.Generator) -> Outline:
    """A shape around (0, 0) whose box has a longer side of 1, with the proportions and the turn that `rng` draws."""
    if shape == "circle":
        found: Outline = (_regular(_ROUND),)
    elif shape == "ring":
        found = (_regular(_ROUND), _regular(_ROUND) * rng.uniform(0.5, 0.72))
    elif shape == "square":
        found = (_regular(4, np.pi / 4),)
    elif shape == "triangle":
        found = (_regular(3, -np.pi / 2) * np.array([rng.uniform(0.85, 1.15), 1.0]),)
    elif shape == "star":
        found = (_star(rng.uniform(0.38, 0.52)),)
    else:
        found = (_cross(rng.uniform(0.26, 0.38)),)
    most = _TURNS.get(shape, 0.0)
    if shape == "triangle" and rng.random() < 0.25:
        most = 180.0
    turned = tuple(rotated(part, np.radians(rng.uniform(-most, most))) for part in found)
    low, high = turned[0].min(axis=0), turned[0].max(axis=0)
    return tuple((part - (low + high) / 2) / (high - low).max() for part in turned)


def rotated(points: Points, angle: float) -> Points:
    """Turned around (0, 0), in radians."""
    cos, sin = np.cos(angle), np.sin(angle)
    return np.asarray(points @ np.array([[cos, sin], [-sin, cos]]))


def freehand(points: Points, reach: float, rng: np.random.Generator) -> Points:
    """As a hand draws it: finer along the edges, each point off by a slow wave of at most about `reach`."""
    closed = np.vstack([points, points[:1]])
    steps = np.hypot(*np.diff(closed, axis=0).T)
    along = np.concatenate([[0.0], np.cumsum(steps)])
    at = np.linspace(0, along[-1], max(160, len(points)), endpoint=False)
    at = np.union1d(at, along[:-1])  # corners stay corners
    fine = np.stack([np.interp(at, along, closed[:, axis]) for axis in (0, 1)], axis=1)
    phase = at / along[-1] * 2 * np.pi
    waves = np.zeros_like(fine)
    for n in range(2, 7):
        amount, shift = rng.normal(0, 0.3, 2), rng.uniform(0, 2 * np.pi, 2)
        waves += amount * np.sin(n * phase[:, None] + shift)
    return np.asarray(fine + np.clip(waves, -1, 1) * reach)


def box_of(found: Outline, margin: float = 0.0) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of what is drawn, with half of a stroke's width around it."""
    left, top = found[0].min(axis=0) - margin
    right, bottom = found[0].max(axis=0) + margin
    return float(left), float(top), float(right), float(bottom)


def _regular(corners: int, first: float = 0.0) -> Points:
    angles = first + np.arange(corners) * 2 * np.pi / corners
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _star(inner: float) -> Points:
    points = _regular(10, -np.pi / 2)
    points[1::2] *= inner
    return points


def _cross(arm: float) -> Points:
    """A plus whose arms are `arm` wide, of a whole that is 1 wide."""
    a, b = arm / 2, 0.5
    corners = [
        (-a, -b),
        (a, -b),
        (a, -a),
        (b, -a),
        (b, a),
        (a, a),
        (a, b),
        (-a, b),
        (-a, a),
        (-b, a),
        (-b, -a),
        (-a, -a),
    ]
    return np.array(corners)
