"""A page and its Chinese twin say the same: the same headings, commands, names and rows, in the same order."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.architecture.laws import outside_code
from tests.tables import each_of

pytestmark = pytest.mark.slow

REPO = Path(__file__).resolve().parents[2]
TWINS = ("README.md", "docs/runbook.md")  # docs/npu.zh.md is a part of its page


def bones(page: str) -> dict[str, list[str]]:
    """What does not change with the language, by what it is.

    Of code its lines, without what stands behind two blanks (a comment); of prose and tables, the code spans of each
    section, sorted, for word order changes; flags stand in such spans, or are found by themselves.
    """
    page = page.replace(".zh.md", ".md")
    prose = dict(outside_code(page))
    lines = page.splitlines()
    code = [re.split(r"\s{2,}", line.strip())[0] for n, line in enumerate(lines, 1) if n not in prose and line.strip()]
    return {
        "headings": [line.split()[0] for line in prose.values() if re.match(r"#{1,6} ", line)],
        "code": code,
        "names": [name for section in sections(prose.values()) for name in sorted(names(section))],
        "rows": [str(line.count("|")) if line.startswith("|") else "" for line in prose.values() if line[:1] in "|#"],
        "links": sorted(re.findall(r"\]\(((?:docs/|\.\./|\w)[^)#]*)", page)),
    }


def sections(prose: Iterable[str]) -> list[str]:
    return re.split(r"^#{1,6} .*$", "\n".join(prose), flags=re.MULTILINE)


def names(section: str) -> set[str]:
    """Code spans, and flags of a command beside them."""
    joined = " ".join(section.split())
    return {*re.findall(r"`([^`]+)`", joined), *re.findall(r"(?<![\w-])--[a-z][a-z-]+", joined)}


def differences(page: str, twin: str) -> dict[str, tuple[list[str], list[str]]]:
    """By kind: what the page alone has, and what its twin alone has; where both have the same, both orders."""
    ours, theirs = bones(page), bones(twin)
    return {
        kind: ([one for one in ours[kind] if one not in theirs[kind]] or ours[kind],
               [one for one in theirs[kind] if one not in ours[kind]] or theirs[kind])
        for kind in ours
        if ours[kind] != theirs[kind]
    }  # fmt: skip


@each_of("name", TWINS)
def test_twins_say_the_same(name: str) -> None:
    page = REPO / name
    assert differences(page.read_text("utf-8"), page.with_suffix(".zh.md").read_text("utf-8")) == {}


PAGE = "# A\n\nText `--one`.\n\n    run --one 1      # first\n\n## B\n\n| `a` | b |\n|---|---|\n\n[c](c.md#d)\n"


@each_of(
    "old, new",
    [
        ("## B\n", ""),
        ("## B", "### B"),
        ("run --one 1", "run --one 2"),
        ("Text `--one`", "Text `--two`"),
        ("Text `--one`", "Text --two, `--one`"),
        ("| `a` | b |", "| a | b |"),
        ("|---|---|\n", "|---|---|\n| c | d |\n"),
        ("c.md#d", "e.md#d"),
    ],
)
def test_a_difference_is_seen(old: str, new: str) -> None:
    twin = (
        PAGE.replace("Text", "文").replace("# first", "# 第一").replace("c.md#d", "c.zh.md#丁").replace("# A", "# 甲")
    )
    assert differences(PAGE, twin) == {}
    assert differences(PAGE.replace(old, new), twin) != {}
