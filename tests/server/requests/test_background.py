"""Tasks that nobody awaits run to their end, and none fails unseen."""

import asyncio

import pytest

from server.requests.background import Background


def test_the_first_error_is_kept_and_idle_waits_for_all() -> None:
    async def scenario() -> None:
        background = Background()
        done: list[int] = []

        async def work(n: int) -> None:
            await asyncio.sleep(0.01)
            done.append(n)
            if n == 1:
                background.spawn(work(2))
            if n == 2:
                raise KeyError(n)

        background.spawn(work(1))
        await background.idle()
        assert done == [1, 2]
        with pytest.raises(KeyError):
            await background.failed

    asyncio.run(scenario())
