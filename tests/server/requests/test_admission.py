"""Who is taken, who is refused and why, and how a drain ends those inside."""

import asyncio

from tests.server.doubles import Scene, prepared, until
from tests.server.scenario import Play, fails, request, start


def test_the_queue_is_bounded_and_a_drain_takes_nobody(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        tasks = [start(scene, request(name=f"chat-{i}"))[0] for i in range(4)]
        await until(lambda: scene.service.admission.n_active == 4)
        refused, _ = start(scene, request(name="chat-9"))
        await fails(refused, "overloaded", "queue_full")
        drain = asyncio.create_task(scene.service.admission.drain(0.05))
        await asyncio.sleep(0)
        refused, _ = start(scene, request(name="chat-9"))
        await fails(refused, "unavailable", "stopping")
        await drain
        assert all(task.cancelled() for task in tasks)
        scene.workers.slots[0].on_message(prepared("chat-0"))

    play(scenario)
