"""Caches that hit every other time, too small for what is asked, while clients leave and processes are killed."""

import os
import signal
import time
from collections import Counter
from itertools import cycle

import pytest

from tests.e2e.cache_soak import CLIENTS, Load, peak_bytes, right_answers, stories
from tests.e2e.conftest import Start
from tests.e2e.running import RunningServer, until

pytestmark = pytest.mark.process

MIB = 1 << 20
EMBEDDING_MIB, KV_MIB = 1, 1  # of about 20 pictures, and of 2,048 tokens
FLAGS = ("--embedding-mib", str(EMBEDDING_MIB), "--kv-cache-mib", str(KV_MIB), "--max-model-len", "2048")
OFF = ("--prefix-cache", "off", "--encoder-cache", "off")
SHORT_SECONDS, SHORT_STORIES, LONG_STORIES = 20.0, 36, 120
ROLES = ("worker", "engine", "picture_worker")
KILL_SECONDS = 10.0  # between two deaths, less in a short run
ENGINE_SPARE = 16 * MIB  # what an allocator keeps more in one run than in another


def soak(start: Start, seconds: float, n_stories: int) -> None:
    """The first half kills engines too; through the second lives one, so that what grows shows."""
    asked = stories(n_stories)
    with start(*FLAGS, *OFF) as server:
        right = right_answers(server, asked)
        with Load(server=server, asked=asked, right=right):  # steps of as many sizes, each with kernels of its own
            time.sleep(seconds / 8)
        without = peak_bytes(server.children("engine"))
    kills: Counter[str] = Counter()
    peak = shm = kept = 0.0
    with start(*FLAGS) as server:
        began = time.monotonic()
        with Load(server=server, asked=asked, right=right) as load:
            every = min(KILL_SECONDS, seconds / 8)
            due = began + every
            roles = cycle(ROLES)
            few = 2 * seconds  # right answers; on a busy machine they take longer, and nothing is killed then
            while (now := time.monotonic()) < began + seconds or load.outcomes["right"] <= few:
                if due <= now < began + seconds:
                    due += every
                    role = next(roles) if now < began + seconds / 2 else "worker"
                    kills[role] += _kill(server, role)
                peak = max(peak, peak_bytes(server.children("engine")))
                shm = max(shm, sum(server.metric(f'shm_bytes{{state="{state}"}}') for state in ("leased", "idle")))
                kept = max(kept, server.metric("mm_cache_bytes"), server.metric("mm_embedding_bytes"))
                time.sleep(0.25)
        until("ready again", lambda: server.ready() == 200)
        server.assert_nothing_held()
        rates = {of: _rate(server, of) for of in ("mm_cache", "prefix_cache")}
        mib = {"engine": peak, "engine without caches": without, "embeddings": kept, "segments": shm}
        print(
            f"\n{time.monotonic() - began:.0f} s: {dict(load.outcomes)}, wrong {len(load.wrong)}, killed {dict(kills)}",
            f"hit rates {rates}, {server.metric('num_preemptions_total'):.0f} preempted",
            f"first log-probabilities at most {load.furthest:.1e} from the right ones",
            f"at most, in MiB: { {of: round(nbytes / MIB, 2) for of, nbytes in mib.items()} }",
            sep="; ",
        )
        assert not load.wrong, load.wrong[:8]
        assert load.outcomes["right"] > few and load.outcomes["left"] > 0
        assert load.outcomes["503"] <= kills["engine"] * CLIENTS
        assert all(0.3 <= rate <= 0.7 for rate in rates.values()), rates
        assert (EMBEDDING_MIB - 0.5) * MIB < kept <= EMBEDDING_MIB * MIB, "full, and no fuller"
        assert peak <= without + EMBEDDING_MIB * MIB + ENGINE_SPARE
        until("nobody died but who was killed", lambda: all(_restarts(server, role) == kills[role] for role in ROLES))


def _kill(server: RunningServer, role: str) -> int:
    """How many died: none where the last one that did is not replaced yet."""
    if not (pids := server.children(role)):
        return 0
    os.kill(pids[0], signal.SIGKILL)
    return 1


def _restarts(server: RunningServer, role: str) -> float:
    return server.metric(f'child_restarts_total{{role="{role}"}}')


def _rate(server: RunningServer, of: str) -> float:
    return round(server.metric(f"{of}_hits_total") / server.metric(f"{of}_queries_total"), 3)


@pytest.mark.faults
def test_answers_of_caches_under_faults(start: Start) -> None:
    soak(start, SHORT_SECONDS, SHORT_STORIES)


@pytest.mark.long
def test_answers_of_caches_under_faults_for_long(start: Start, request: pytest.FixtureRequest) -> None:
    soak(start, request.config.getoption("--soak-seconds"), LONG_STORIES)
