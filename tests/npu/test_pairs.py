"""The pairs of ring 1 are those that the project names elsewhere."""

import re

import pytest

from tests.npu.pairs import PAIRS, REPO
from tests.npu.run import NO_TENSORS, ON_ONE, OWN, WHEEL
from tests.tables import each_of

pytestmark = pytest.mark.network


@each_of(("name", "pair"), [("cpu.txt", PAIRS[0]), ("ascend.txt", PAIRS[1])])
def test_versions_are_those_of_the_constraints(name: str, pair: object) -> None:
    pins = dict(re.findall(r"^(torch|torch_npu)==([^\s;+]+)", (REPO / "constraints" / name).read_text(), re.MULTILINE))
    assert pins and all(getattr(pair, package) == version for package, version in pins.items())


def test_make_knows_them() -> None:
    (line,) = re.findall(r"^NPU_PAIRS := (.+)$", (REPO / "Makefile").read_text(), re.MULTILINE)
    assert line.split() == [pair.name for pair in PAIRS]


def test_what_is_left_out_is_there() -> None:
    """Else a file that was renamed would run again, or what took its name would not."""
    assert not [name for name in NO_TENSORS if not (REPO / name).exists() or not name.startswith(tuple(OWN))]
    for name in ON_ONE:
        file, _, function = name.partition("::")
        text = (REPO / WHEEL / file).read_text()
        assert f"def {function}(" in text or not function, name
