"""An engine of two ranks in one process: each has the whole model, and they have nothing but their link."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model.engine.engine import Engine
from model.engine.ranks.follower import Follower
from model.engine.ranks.link import RankLink
from model.engine.runner import Runner
from model.forward_batch import KVCache
from model.net.multimodal import MultimodalLM
from shm import ChannelClosed, channel_pair
from tests.model.engine.engine_harness import engine_at


class Meeting:
    """Where two threads gather."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2, timeout=20)
        self.given: list[Tensor] = [torch.empty(0)] * 2
        self.n_gathers = 0


class RanksDouble:
    """As model.ops.collectives.Ranks, of two threads. Each calls it as often as the other."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self._rank = meeting, rank

    def all_gather(self, x: Tensor) -> Tensor:
        self._meeting.given[self._rank] = x.clone()
        self._meeting.barrier.wait()
        found = torch.cat(self._meeting.given, 1)
        self._meeting.n_gathers += self._rank
        self._meeting.barrier.wait()
        return found


class Ranked:
    """Rank 0 as an engine, and rank 1 in a thread."""

    def __init__(self, model: MultimodalLM, root: Path, others_root: Path, **limits: Any) -> None:
        """others_root: where rank 1 looks for segments; limits: as of engine_at."""
        mine, theirs = channel_pair()
        self.link, self._other = RankLink(0, 2, [mine]), RankLink(1, 2, [theirs])
        with pytest.MonkeyPatch.context() as patch:
            self.caches = _noted(patch)  # of rank 0 and rank 1
            self.engine: Engine = engine_at(model, root, link=self.link, **limits)
            alone = engine_at(model, others_root, link=self._other, **limits)
        self.first: Runner = self.engine._runner
        self.second: Runner = alone._runner
        self.captured = 0
        self.meeting = Meeting()
        for rank, runner in enumerate((self.first, self.second)):
            runner._encoder._ranks = RanksDouble(self.meeting, rank)  # type: ignore[assignment]
        self.follower = Follower(self.second, self._other, self._capture)
        self.error: Exception | None = None  # that rank 1 ended with
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _capture(self) -> None:
        self.captured += 1

    def _follow(self) -> None:
        try:
            self.follower.run()
        except ChannelClosed as error:
            self.error = error

    def close(self) -> None:
        """Rank 0 is gone."""
        self.link.close()
        self._thread.join(20)
        assert not self._thread.is_alive(), "rank 1 goes on without rank 0"
        self._other.close()


def _noted(patch: pytest.MonkeyPatch) -> list[KVCache]:
    """What a model gives out as caches."""
    found, made = list[KVCache](), MultimodalLM.kv_cache

    def noted(self: MultimodalLM, *size: int) -> KVCache:
        found.append(made(self, *size))
        return found[-1]

    patch.setattr(MultimodalLM, "kv_cache", noted)
    return found


@contextmanager
def ranked(model: MultimodalLM, root: Path, others_root: Path | None = None, **limits: Any) -> Iterator[Ranked]:
    both = Ranked(model, root, others_root or root, **limits)
    try:
        yield both
    finally:
        both.close()
