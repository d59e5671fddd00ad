"""Whether what is pinned can be installed on aarch64: the question to an index, and the committed answer."""

from collections.abc import Iterator
from contextlib import closing
from datetime import date
from pathlib import Path

import pytest

from constraints import wheels
from constraints.index import PYPI, Index, IndexFailure, settings
from constraints.pins import PYTHONS, pins
from constraints.table import Row, read, written
from tests.architecture.small_index import SmallIndex, running
from tests.tables import each_of

pytestmark = pytest.mark.slow

REPO = Path(__file__).resolve().parents[2]
PROJECT = """
[project]
dependencies = ["server-part[fast]>=1", "old; python_version < '3.11'", "elsewhere; platform_machine == 'x86_64'"]
[project.optional-dependencies]
npu = ["chip-part"]
hub = ["hub-part"]
otel = []
modelscope = []
ray = []
train = []
test = []
"""
PINS = """# A heading.
base==2.0
hub-part==3.0
old==1.0; python_version < "3.11"
only-here==1.0; platform_machine == "x86_64"
server_part==1.5
"""


@pytest.fixture
def index() -> Iterator[SmallIndex]:
    with running() as small:
        small.add("server_part-1.4-py3-none-any.whl", ["nowhere"])
        small.add("server_part-1.5-cp310-abi3-manylinux_2_24_aarch64.manylinux_2_28_aarch64.whl", [
            "base>=1; extra == 'fast'", "nowhere; platform_machine == 'x86_64'", "nowhere; extra == 'slow'",
        ], python=">=3.10", padding=1 << 18)  # fmt: skip
        small.add("base-2.0-py3-none-any.whl", python=">= '2.7'")
        small.files["base-2.0.tar.gz"], small.requires_python["base-2.0.tar.gz"] = b"", ""
        small.add("base-1.0-py3-none-any.whl", python=">= '2.7'")
        small.add("hub_part-3.0-py3-none-any.whl", ["base"])
        small.add("old-1.0-cp310-cp310-manylinux2014_aarch64.whl")
        small.add("chip_part-9.0-py3-none-manylinux_2_28_aarch64.whl")
        small.requires_python["base-2.0-py3-none-any.whl"] = ""
        yield small


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    (tmp_path / "constraints").mkdir()
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "constraints" / "cpu.txt").write_text(PINS)
    (tmp_path / "constraints" / "ascend.txt").write_text(f"{PINS}chip_part==9.0\n")
    return tmp_path


def asked(repo: Path, small: SmallIndex) -> list[str]:
    with closing(Index(small.url)) as index:
        return wheels.write(repo, index)


def rows(repo: Path, path: str = "constraints/cpu.txt") -> dict[str, Row]:
    return {row.name: row for row in read((repo / wheels.RESULT).read_text())[path]}


@pytest.mark.parametrize("html", [False, True])
def test_what_has_its_wheels_is_written_and_holds(repo: Path, index: SmallIndex, html: bool) -> None:
    index.html = html
    assert asked(repo, index) == []
    assert rows(repo).keys() == {"base", "hub-part", "old", "server_part"}
    assert rows(repo)["server_part"].cells == dict.fromkeys(PYTHONS, "manylinux_2_24")
    assert rows(repo)["old"].cells == {"3.10": "manylinux_2_17"}
    assert (rows(repo)["base"].by, rows(repo)["hub-part"].by) == ("server", "extra")
    assert rows(repo, "constraints/ascend.txt")["chip_part"].by == "server"
    assert wheels.check(repo) == []


@pytest.mark.parametrize("html", [False, True])
def test_a_file_that_is_no_wheel_is_had_by_its_name(index: SmallIndex, html: bool) -> None:
    index.html = html
    index.files["base-2.0.tar.gz"] = b"source"
    with closing(Index(index.url)) as asking:
        assert asking.file("base", "base-2.0.tar.gz") == b"source"
        for project, name in (("base", "base-3.0.tar.gz"), ("nowhere", "nowhere-1.0.tar.gz")):
            with pytest.raises(IndexFailure, match=f"{project}: the index has no {name}"):
                asking.file(project, name)


def test_a_name_wider_than_its_column_is_read_again() -> None:
    row = Row(name="n" * 40, version="1.2.3", by="extra", cells=dict.fromkeys(PYTHONS, "any"))
    assert read(written({"a.txt": [row]}, date(2026, 11, 22))) == {"a.txt": [row]}


@pytest.mark.parametrize("name", ["x86_64", "glibc", "python", "sdist"])
def test_a_needed_package_without_a_wheel_is_named(repo: Path, index: SmallIndex, name: str) -> None:
    del index.files["base-2.0-py3-none-any.whl"]
    for minor in (10, 11, 12):
        if name == "x86_64":
            index.add(f"base-2.0-cp3{minor}-cp3{minor}-manylinux_2_17_x86_64.whl")
        if name == "glibc":
            index.add(f"base-2.0-cp3{minor}-cp3{minor}-manylinux_2_34_aarch64.whl")
        if name == "python":
            index.add("base-2.0-py3-none-any.whl", python=">=3.13")
    said = "server-part asks for base>=1: 2.0 has no wheel for aarch64 (Python 3.10, 3.11, 3.12)"
    assert asked(repo, index) == [f"constraints/{file}.txt: {said}" for file in ("ascend", "cpu")]
    assert not (repo / wheels.RESULT).exists()


def test_an_optional_package_may_have_none(repo: Path, index: SmallIndex) -> None:
    del index.files["hub_part-3.0-py3-none-any.whl"]
    assert asked(repo, index) == []
    assert rows(repo)["hub-part"].cells == dict.fromkeys(PYTHONS, "none")
    (repo / "pyproject.toml").write_text(PROJECT.replace('"server-part', '"hub-part", "server-part'))
    assert f"{wheels.RESULT} does not know that the server asks for hub-part" in wheels.check(repo)


def test_missing_wrong_and_idle_pins_are_named(repo: Path, index: SmallIndex) -> None:
    index.add("base-2.0-py3-none-any.whl", ["deeper>=1; python_version > '3.10'", "old<1; python_version < '3.11'"])
    (repo / "constraints" / "cpu.txt").write_text(f"{PINS}idle==1.0\n")
    assert [line for line in asked(repo, index) if line.startswith("constraints/cpu.txt: ")] == [
        "constraints/cpu.txt: base asks for old<1: 1.0 is pinned (Python 3.10)",
        "constraints/cpu.txt: base asks for deeper>=1: it is not pinned (Python 3.11, 3.12)",
        "constraints/cpu.txt: nothing asks for idle==1.0",
    ]


def test_a_stale_result_fails_the_check(repo: Path, index: SmallIndex) -> None:
    assert asked(repo, index) == []
    (repo / "constraints" / "cpu.txt").write_text(PINS.replace("base==2.0", "base==2.1"))
    assert wheels.check(repo) == [
        f"{wheels.RESULT} lacks base==2.1 of constraints/cpu.txt",
        f"constraints/cpu.txt lacks base==2.0 of {wheels.RESULT}",
    ]
    (repo / "constraints" / "cpu.txt").write_text(PINS.replace('old==1.0; python_version < "3.11"', "old==1.0"))
    assert wheels.check(repo) == [f"{wheels.RESULT} lacks old==1.0 of constraints/cpu.txt"]


def test_the_committed_result_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert (wheels.main(["--check"]), capsys.readouterr().err) == (0, "")
    assert rows(REPO, "constraints/ascend.txt")["torch_npu"].cells == dict.fromkeys(PYTHONS, "manylinux_2_28")


def test_the_check_says_what_to_do(
    repo: Path, index: SmallIndex, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(repo, index) == []
    (repo / "constraints" / "ascend.txt").write_text(PINS)
    monkeypatch.setattr(wheels, "REPO", repo)
    said = f"constraints/ascend.txt lacks chip_part==9.0 of {wheels.RESULT}: run `make wheels`\n"
    assert (wheels.main(["--check"]), capsys.readouterr().err) == (1, said)


def test_an_index_that_fails_is_named(repo: Path, index: SmallIndex) -> None:
    index.ranges = False
    with pytest.raises(IndexFailure, match=r"\.whl: the index answered 200 where a part of it was asked for"):
        asked(repo, index)
    index.url = "http://127.0.0.1:9/simple"
    with pytest.raises(IndexFailure, match="the index cannot be read"):
        asked(repo, index)


def test_two_lines_for_one_project_are_refused() -> None:
    with pytest.raises(ValueError, match="A is pinned twice for Python 3.11"):
        pins("a==1\nA==2\n", "3.11")
    with pytest.raises(ValueError, match="'a>=1' pins no version"):
        pins("a>=1\n", "3.11")


@each_of("listed, url, certificates", [
    ("", PYPI, None),
    ("global.extra-index-url='https://other.example/simple'\n", PYPI, None),
    ("global.cert='/a.pem'\nglobal.index-url='https://mirror.example'\n", "https://mirror.example", "/a.pem"),
    (":env:.index-url='http://127.0.0.1/a'\nglobal.index-url='https://mirror.example'\n", "http://127.0.0.1/a", None),
])  # fmt: skip
def test_pips_own_settings_name_the_index(listed: str, url: str, certificates: str | None) -> None:
    assert settings(listed) == (url, certificates)
