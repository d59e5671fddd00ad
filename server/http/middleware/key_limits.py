"""How much one API key may ask for: requests a minute, and requests at once. Knows a key by its label alone."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from server.requests.refusal import Refusal, overloaded

MINUTE = 60.0  # seconds in which an empty bucket fills evenly
RATE_HEADERS = ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests")
_NOISE = 1e-6  # seconds: sums of steps are not exact


@dataclass(slots=True)
class KeyUse:
    """What the keys of one label use now."""

    full_at: float = 0.0  # when their bucket is full again; each request moves it by the time of one token
    n_active: int = 0  # requests


class KeyLimits:
    """A bucket for each label: it holds what a minute allows, all of it at once, and refills evenly.

    Counts from the moment when a request is about to be computed to the end of its answer. One that is refused takes
    nothing.
    """

    def __init__(
        self, per_minute: int | None, at_once: int | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """per_minute, at_once: requests; None: any number."""
        self.per_minute = per_minute
        self.at_once = at_once
        self.clock = clock
        self._uses: dict[str, KeyUse] = {}

    def place(self, label: str) -> "KeyPlace":
        """For a request by a key of this label. Nothing is counted before its `take`."""
        return KeyPlace(self, label)

    def use_of(self, label: str) -> KeyUse:
        """What counts for a label now. Asked where it is counted: labels that nobody uses any more are forgotten."""
        if label not in self._uses:
            now = self.clock()
            self._uses = {name: use for name, use in self._uses.items() if use.n_active or use.full_at > now}
        return self._uses.setdefault(label, KeyUse())


@dataclass(slots=True)
class KeyPlace:
    """One request among those of its key."""

    limits: KeyLimits
    label: str
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)  # of its answer, as OpenAI has them
    taken: bool = False

    @property
    def use(self) -> KeyUse:
        return self.limits.use_of(self.label)

    def take(self) -> None:
        """Count it. Raises Refusal (429), also where only the headers say so: they are set in any case."""
        most, per_minute, use = self.limits.at_once, self.limits.per_minute, self.use
        refusal = None
        if most is not None and use.n_active >= most:
            refusal = overloaded(
                f"this key has {most} requests that are not answered yet, and may have no more (--key-concurrency)",
                "concurrency_limit_exceeded",
            )
        if per_minute is not None:
            refusal = self._token(use, per_minute, refusal)
        if refusal is not None:
            raise refusal
        use.n_active += 1
        self.taken = True

    def leave(self) -> None:
        """Its answer ended, or its client left."""
        if self.taken:
            self.use.n_active -= 1
            self.taken = False

    def _token(self, use: KeyUse, per_minute: int, refusal: Refusal | None) -> Refusal | None:
        """Take one of the bucket unless it is refused already. Sets the headers."""
        now, step = self.limits.clock(), MINUTE / per_minute
        missing = max(0.0, use.full_at - now)  # seconds
        wait = missing + step - MINUTE
        if refusal is None and wait > _NOISE:
            refusal = overloaded(
                f"this key may make {per_minute} requests a minute (--key-requests-per-minute)", "rate_limit_exceeded",
                retry_after=wait,
            )  # fmt: skip
        elif refusal is None:
            missing += step
            use.full_at = now + missing
        left = max(0, int((MINUTE - missing + _NOISE) / step))
        values = (str(per_minute), str(left), duration(missing))
        self.headers = [(name.encode(), value.encode()) for name, value in zip(RATE_HEADERS, values, strict=True)]
        return refusal


def duration(seconds: float) -> str:
    """As OpenAI writes it, which is Go's form: 20ms, 8.64s, 1m0s. Never too short."""
    milliseconds = math.ceil(seconds * 1000 - _NOISE)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return (f"{minutes}m" if minutes else "") + f"{rest / 1000:g}s"
