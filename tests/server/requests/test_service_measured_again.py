"""A worker that finds a damaged video measures again: the first leases go back, the new ones are all that is out."""

from tests.server.doubles import Scene, until
from tests.server.scenario import A, Play, fails, generating, leased, request, start
from tokenization.messages import Cancel, Leases, Measured, PrepareFailed


def measured_again(scene: Scene, nbytes: tuple[int, ...]) -> None:
    params = tuple(f"inputs[{i}]" for i in range(len(nbytes)))
    found = Measured(request_id="chat-1", nbytes=nbytes, params=params, n_tokens=(4,) * len(nbytes))
    scene.workers.slots[0].on_message(found)


def test_the_first_leases_are_given_back_before_the_second_are_made(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        asked = request("image", "image")
        task, _ = start(scene, asked)
        first = await leased(scene, asked, (100, 600_000))  # twice as much would not fit into the pool
        measured_again(scene, (100, 580_000))
        await until(lambda: isinstance(scene.to_worker()[-1], Leases) and scene.to_worker()[-1].names != first)
        second = scene.to_worker()[-1].names
        assert len(second) == 2 and not set(first) & set(second)
        lying = {path.name for path in scene.owner.root.iterdir()}
        assert set(second) <= lying and not set(first) & lying
        assert (await scene.stats()).leases == 2
        await generating(scene, media=2)
        scene.say("chat-1", A, finish="stop")
        await task

    play(scenario)


def test_a_client_that_leaves_meanwhile_leaves_nothing(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        asked = request("image")
        task, _ = start(scene, asked)
        await leased(scene, asked, (1000,))
        task.cancel()
        await until(task.done)
        measured_again(scene, (500,))
        await until(lambda: scene.to_worker()[-1] == Cancel(request_id="chat-1"))
        scene.workers.slots[0].on_message(PrepareFailed(request_id="chat-1", kind="cancelled", message=""))

    play(scenario)


def test_what_is_measured_again_may_be_refused(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        asked = request("image")
        task, _ = start(scene, asked)
        await leased(scene, asked, (1000,))
        measured_again(scene, (1 << 20,))
        await fails(task, "invalid_request", "media_too_large", "inputs[0]")
        await until(lambda: scene.to_worker()[-1] == Cancel(request_id="chat-1"))
        scene.workers.slots[0].on_message(PrepareFailed(request_id="chat-1", kind="cancelled", message=""))

    play(scenario)
