"""Whose masks steps have waited for, and how long: every other row of such a step waited, too."""

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)

SHARE = 0.1  # of all time may be waited for masks, by those together that are waited for beyond their first step


class WaitedFor(Generic[C]):
    """What each client has been waited for: beyond a step's time no step waits for it until that is paid off."""

    def __init__(self, most_seconds: float) -> None:
        """most_seconds: that one client may be waited for at once."""
        self._most_seconds = most_seconds
        self._owed: dict[C, float] = {}
        self._paid_at = 0.0
        self._missing: Collection[C] = ()
        self._at = 0.0

    def owes(self, client: C, now: float) -> bool:
        """Whether no step should wait for this client now."""
        if not self._owed:
            return False
        paid, self._paid_at = (now - self._paid_at) * SHARE / len(self._owed), now
        self._owed = {name: left - paid for name, left in self._owed.items() if left > paid}
        return self._owed.get(client, 0.0) > self._most_seconds

    def since(self, now: float, missing: Collection[C], free: float) -> None:
        """A step waits from now on for masks of these clients; until `free` they are charged nothing."""
        self.over(now)
        self._missing, self._at = missing, max(now, free)

    def over(self, now: float) -> None:
        """What it waited for is there, or it waits no longer."""
        if self._missing and now > self._at:
            if not self._owed:
                self._paid_at = now
            for client in self._missing:
                self._owed[client] = self._owed.get(client, 0.0) + (now - self._at) / len(self._missing)
        self._missing = ()
