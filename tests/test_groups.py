"""Files of one server are one group, and a seed tells the order of files."""

import re
from typing import Any

from tests.groups import APART, E2E, REPO, SHARED, group_of, put_in_random_order


class Item:
    """As much of a test as is sorted."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


def test_files_of_one_server_go_together() -> None:
    def groups(*names: str) -> set[str]:
        return {group_of(f"{E2E}test_{name}.py::test_x") for name in names}

    assert groups("chat", "errors", "audio", "tools", "video", "proxy", "surface") == {"servers"}
    assert groups("demo", "openapi") == {"embedded"}
    for alone in ("watching", "wheel", "encoder_cache", "keys", "hub", "leaving"):
        assert groups(alone) == {f"{E2E}test_{alone}.py"}, "its server is its own"
    assert group_of(f"{APART}::test_x[a]") == f"{APART}::test_x[a]"
    assert group_of("tests/test_leaks.py::test_x") == "tests/test_leaks.py"


def test_every_server_of_the_session_has_a_group() -> None:
    texts = [(REPO / E2E / name).read_text(encoding="utf-8") for name in ("conftest.py", "saying.py")]
    pattern = r'scope="session"\)\ndef (\w+)\([^)]*\) -> Iterator\[(?:RunningServer|Saying)\]'
    found = {name for text in texts for name in re.findall(pattern, text)}
    assert found | {"omni"} == SHARED.keys()


def test_a_seed_tells_the_order_of_files() -> None:
    nodeids = [f"tests/test_{file}.py::test_{number}" for file in "abcdefgh" for number in range(3)]

    def order(seed: int, begun: list[str]) -> list[str]:
        items: list[Any] = [Item(nodeid) for nodeid in begun]
        put_in_random_order(items, seed)
        return [item.nodeid for item in items]

    found = order(3, nodeids)
    assert sorted(found) == nodeids and found == order(3, nodeids) != order(4, nodeids)
    files = [nodeid.partition("::")[0] for nodeid in found]
    assert files[::3] == files[1::3] == files[2::3], "each file is whole"
    assert found[:3] == sorted(found[:3]), "its tests stay in their order"
