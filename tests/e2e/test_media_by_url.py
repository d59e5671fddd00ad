"""A whole server in a network of the test's own: media by URL on every route, and who is connected to."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Start
from tests.e2e.running import RunningServer
from tests.network.inside_server import OTHERS_FILES, PLACES, TRICKLING, absent
from tests.network.namespace import run_inside, why_not
from tests.tiny.qwen2_5_omni import write_qwen2_5_omni

pytestmark = pytest.mark.process

NO_NETWORK = why_not()
ROUTES_WITH_MEDIA = {"/chat", "/v1/chat/completions", "/tokenize"}  # those that must be there


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/chat", {"inputs": [{"image": "https://media.example.com/a.png"}]}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a.b/"}}]}]},
        ),
    ],
)
def test_without_a_domain_the_flag_is_named_and_nothing_fetches(
    route: str, body: dict[str, Any], server: RunningServer
) -> None:
    answer = server.http.post(route, json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["code"] == "media_url_forbidden"
    assert "--allowed-media-domain" in error["message"] and error["param"]
    assert server.children("fetcher") == []


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, shm_root: Path) -> dict[str, Any]:
    """What inside_server.py saw."""
    if NO_NETWORK:
        pytest.skip(f"no network of its own can be made here: {NO_NETWORK}")
    directory = tmp_path_factory.mktemp("inside")
    model = write_qwen2_5_omni(directory / "tiny-omni")
    root = shm_root.with_name(f"{shm_root.name}-inside")
    args = (str(model), str(root), str(directory / "logs"))
    found: dict[str, Any] = json.loads(run_inside(directory, "tests.network.inside_server", *args, seconds=280))
    assert not root.exists()
    return found


@pytest.mark.faults
def test_on_every_route_nothing_forbidden_is_connected_to(told: dict[str, Any]) -> None:
    assert told["forbidden"] == []
    assert {name.partition(" ")[2] for name in told["places"]} >= ROUTES_WITH_MEDIA
    wrong = {name: place["wrong"] for name, place in told["places"].items() if place["wrong"]}
    assert wrong == {}, "each is a 400 with the code, and names the part"
    assert told["asked"]["mixed.test"] > 0


@pytest.mark.faults
def test_every_place_of_a_picture_is_answered(told: dict[str, Any]) -> None:
    """Where another kind of medium is wanted, it was fetched and is none."""
    good = [place["good"] for place in told["places"].values()]
    assert [one for one in good if one[0] == 200 and not absent(one[1])], good
    others = [one for one in good if one[0] != 200]
    assert all(status == 400 and code != "media_fetch_failed" for status, code, _ in others), others
    assert len(PLACES) >= len(good) >= 9


@pytest.mark.faults
def test_a_file_that_names_others_is_refused_and_opens_nothing(told: dict[str, Any]) -> None:
    assert len(told["files"]) == 3 * len(OTHERS_FILES)
    assert {name: answer for name, answer in told["files"].items() if answer[0] != 400} == {}
    assert told["maps"] == [], "the process that fetches decodes nothing"


@pytest.mark.faults
def test_sixteen_trickling_origins_hold_no_worker(told: dict[str, Any]) -> None:
    assert told["ended while they trickled"] == 0
    assert told["trickling"] <= told["quiet"] + 0.5, f"median {told['quiet']:.3f} s, then {told['trickling']:.3f} s"
    assert len(told["trickled"]) == TRICKLING
    assert {(status, code) for status, code, _ in told["trickled"]} == {(400, "media_fetch_failed")}


@pytest.mark.faults
def test_a_fetcher_that_dies_or_hangs_is_another_one_soon(told: dict[str, Any]) -> None:
    dying = told["dying"]
    assert dying["killed"][:2] == dying["stopped"][:2] == [503, "fetcher_died"]
    assert dying["after killed"][0] == dying["after stopped"][0] == 200
    assert (dying["restarts"], dying["hangs"]) == (2, 1)


@pytest.mark.faults
def test_a_client_that_leaves_leaves_nothing(told: dict[str, Any]) -> None:
    assert told["left"] and told["held"] == 0


@pytest.mark.faults
def test_certificates_that_cannot_be_read_stop_the_start(start: Start, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    flags = ["--allowed-media-domain", "media.example.com", "--media-ca", str(tmp_path / "ca.pem")]
    with start(*flags, wait=False) as server:
        assert server.process.wait(60) == 1
        assert "--media-ca" in server.err + server.out
