"""Random walks through the pool beside a model of it that knows nothing but sizes."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shm import NeverFits, Owner, Pool, PoolFull, SegmentGone, read_segment, write_segment
from shm.segment import file_bytes

CAPACITY = 40 * 4096
sizes = st.lists(st.integers(1, 14 * 4096), min_size=1, max_size=4)
requests = st.sampled_from("abcde")


class PoolWalk(RuleBasedStateMachine):
    """Leases of five requests, of which each reads back what was written to it and no other is refused or freed."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.owner = Owner.claim(Path(self.folder.name) / "root")
        self.pool = Pool(self.owner, CAPACITY)
        self.leased: dict[str, dict[str, np.ndarray]] = {}
        self.retired: dict[str, list[int]] = {}
        self.over: list[str] = []

    def used(self) -> int:
        leased = sum(file_bytes(data.nbytes) for names in self.leased.values() for data in names.values())
        return leased + sum(map(file_bytes, sum(self.retired.values(), [])))

    @rule(request=requests, nbytes=sizes)
    def lease(self, request: str, nbytes: list[int]) -> None:
        need = sum(map(file_bytes, nbytes))
        if need > CAPACITY:
            with pytest.raises(NeverFits):
                self.pool.lease(request, nbytes)
        elif self.used() + need > CAPACITY:
            with pytest.raises(PoolFull):
                self.pool.lease(request, nbytes)
        else:
            for name, size in zip(self.pool.lease(request, nbytes), nbytes, strict=True):
                assert name not in self.over
                data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
                write_segment(self.owner.root, name, data)
                self.leased.setdefault(request, {})[name] = data

    @rule(request=requests, count=st.integers(1, 3))
    def give_back(self, request: str, count: int) -> None:
        names = list(self.leased.get(request, {}))[:count]
        self.pool.give_back(request, names)
        for name in names:
            del self.leased[request][name]
        self.over += names

    @rule(request=requests)
    def retire(self, request: str) -> None:
        self.pool.retire(request)
        names = self.leased.pop(request, {})
        self.retired.setdefault(request, []).extend(data.nbytes for data in names.values())
        self.over += names

    @rule(request=requests)
    def settle(self, request: str) -> None:
        self.pool.settle(request)
        self.retired.pop(request, None)

    @rule(request=requests)
    def release_stale_names(self, request: str) -> None:
        others = [name for other, names in self.leased.items() if other != request for name in names]
        self.pool.give_back(request, self.over[-5:] + others)

    @invariant()
    def leases_hold_their_bytes_and_old_names_lead_nowhere(self) -> None:
        for names in self.leased.values():
            for name, data in names.items():
                np.testing.assert_array_equal(read_segment(self.owner.root, name, data.shape, np.uint8), data)
        for name in self.over[-5:]:
            with pytest.raises(SegmentGone):
                read_segment(self.owner.root, name, (1,), np.uint8)

    @invariant()
    def the_books_are_right(self) -> None:
        stats = self.pool.stats()
        lengths = [path.stat().st_size for path in self.owner.root.iterdir() if path.suffix in ("", ".idle")]
        assert (stats.total_bytes, stats.segments) == (sum(lengths), len(lengths))
        assert self.used() <= stats.leased_bytes <= stats.total_bytes <= CAPACITY
        assert stats.leases == sum(map(len, self.leased.values())) + sum(map(len, self.retired.values()))

    def teardown(self) -> None:
        self.owner.close()
        self.folder.cleanup()


TestPoolWalk = PoolWalk.TestCase
TestPoolWalk.settings = settings(max_examples=40, stateful_step_count=40)
