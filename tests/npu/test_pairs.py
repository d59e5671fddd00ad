"""The pairs of ring 1 are those that the project names elsewhere."""

import re

from tests.model.each import each
from tests.npu.pairs import PAIRS, REPO


@each(("name", "pair"), [("cpu.txt", PAIRS[0]), ("ascend.txt", PAIRS[1])])
def test_versions_are_those_of_the_constraints(name: str, pair: object) -> None:
    pins = dict(re.findall(r"^(torch|torch_npu)==([^\s;+]+)", (REPO / "constraints" / name).read_text(), re.MULTILINE))
    assert pins and all(getattr(pair, package) == version for package, version in pins.items())


def test_make_knows_them() -> None:
    (line,) = re.findall(r"^NPU_PAIRS := (.+)$", (REPO / "Makefile").read_text(), re.MULTILINE)
    assert line.split() == [pair.name for pair in PAIRS]
