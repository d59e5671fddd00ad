"""Clients that want more and more of one engine: what each is given over hundreds of steps."""

import random
from collections import Counter

import pytest

from tests.model.engine.bookkeeping import outcome, request, scheduler


def jain(amounts: list[float]) -> float:
    """Jain, Chiu and Hawe (1984): 1 where all have the same."""
    return sum(amounts) ** 2 / (len(amounts) * sum(amount * amount for amount in amounts))


@pytest.mark.parametrize("n_clients", [3, 30, 300])
def test_clients_that_always_want_more_get_the_same(n_clients: int) -> None:
    """Each always has some that wait; their prompts and answers are of unlike lengths."""
    drawn = random.Random(n_clients)
    sched = scheduler(n_blocks=600, block_size=16, seqs=32, tokens=256)
    wants = {client: drawn.choice([16, 40] if n_clients < 300 else [2, 5]) for client in range(n_clients)}
    sizes = {client: (drawn.choice([5, 20, 60]), drawn.choice([4, 20, 40])) for client in wants}
    inside: Counter[int] = Counter()
    used: Counter[int] = Counter()
    n = 0
    for _ in range(400 if n_clients < 300 else 1000):
        for client, most in wants.items():
            while inside[client] < most:
                n += 1
                inside[client] += 1
                sched.add(request(f"{client}-{n}", *sizes[client], client=client))
        plan = sched.plan()
        for chunk in plan.chunks:
            sequence = sched[chunk.key]
            used[sequence.client] += max(0, chunk.stop - sequence.n_charged)
        events = sched.commit(plan, outcome({key: 1 for chunk in plan.chunks for key in chunk.sampled_keys}))
        inside.subtract(int(event.request_id.split("-")[0]) for event in events if event.finish)
    assert jain([float(used[client]) for client in wants]) >= 0.95
