"""The page of /metrics: one for all who ask meanwhile."""

import asyncio

import pytest

from server.http.health import MetricsPage
from tests.server.doubles import Scene
from tests.server.http.exchanges import bodies
from tests.server.scenario import Play


def test_many_who_ask_at_once_share_a_page_that_is_no_older_than_the_question(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(scene: Scene) -> None:
        metrics, made = scene.service.metrics, 0
        render = metrics.render

        def counted() -> bytes:
            nonlocal made
            made += 1
            return render()

        monkeypatch.setattr(metrics, "render", counted)
        page = MetricsPage(scene.service, bodies())
        pages = await asyncio.gather(*(page.made() for _ in range(400)))
        assert made == 1 and len(set(pages)) == 1
        metrics.reject("unread")
        later, left = asyncio.create_task(page.made()), asyncio.create_task(page.made())
        await asyncio.sleep(0)
        left.cancel()
        assert b'mm_rejected_total{reason="unread"} 1.0' in await later and made == 2

    play(scenario)
