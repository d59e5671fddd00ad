"""One question of the exam: its media, its turns, the tools it offers, and the rule that its answer is held to."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from benchmarks.independent_exam import clips, sounds
from benchmarks.independent_exam.clips import Clip
from benchmarks.independent_exam.scenes import Scene
from benchmarks.independent_exam.scoring import Rule
from benchmarks.independent_exam.sounds import Sound

Medium = Scene | Clip | Sound
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked. part: what it is counted under beside its row.

    turns: what the user says, one after another; the media come before the first, and the last answer is scored.
    """

    part: str
    turns: tuple[str, ...]
    rule: Rule
    media: tuple[Medium, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()


def part_of(medium: Medium) -> dict[str, str]:
    """As `POST /chat` takes it. Pictures and clips need Skia."""
    if isinstance(medium, Sound):
        name, (kind, content) = "audio", sounds.encoded(medium)
    elif isinstance(medium, Clip):
        name, (kind, content) = "video", clips.encoded(medium)
    else:
        from benchmarks.independent_exam import drawing  # Skia is in the exam's own environment

        name, (kind, content) = "image", drawing.encoded(medium)
    return {name: f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"}


def one_of(choices: Sequence[T], rng: np.random.Generator) -> T:
    """One of them, each as likely."""
    return choices[int(rng.integers(len(choices)))]
