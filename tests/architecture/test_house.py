"""Packaging, pages and files that say the same thing twice say it the same way."""

import ast
import hashlib
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from configs.settings import EMBEDDED_MODEL, SETTINGS
from demo.checkpoint import write_files
from demo.sizes import Sizes
from docs import generate
from tests.architecture.laws import copy_sources

pytestmark = pytest.mark.slow

REPO = Path(__file__).resolve().parents[2]


def read(name: str) -> str:
    return (REPO / name).read_text(encoding="utf-8")


def test_generated_pages_are_up_to_date() -> None:
    stale = [path.name for path, text in generate.pages(REPO).items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run `make docs`"


def test_a_stale_page_would_be_seen(tmp_path: Path) -> None:
    for name in ("map.md", "configuration.md", "compat.md", "migrating.md", "models.md", "api.md"):
        (tmp_path / "docs").mkdir(exist_ok=True)
        (tmp_path / "docs" / name).write_text(read(f"docs/{name}"))
    (tmp_path / "shm").mkdir()
    (tmp_path / "shm" / "new.py").write_text('"""A new\nmodule | with bars. And more.\n\nMore."""\nimport shm.below\n')
    (tmp_path / "shm" / "below.py").write_text('"""What the new one needs."""\n')
    text = generate.pages(tmp_path)[tmp_path / "docs" / "map.md"]
    rows = ["| 2 | `new.py` | A new module \\| with bars |", "| 1 | `below.py` | What the new one needs |"]
    assert "\n".join(rows) in text
    assert "`owner.py` |" not in text
    with pytest.raises(ValueError, match="marks"):
        generate.filled("no marks here", "modules", "")


def names_in(path: Path) -> set[str]:
    """Functions and classes of a module, methods as Class.method."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


def test_what_the_map_points_at_is_there() -> None:
    places = re.findall(r"`([\w/]+\.py):([\w.]+)`", read("docs/map.md"))
    assert len(places) > 20
    missing = [f"{file}:{name}" for file, name in places if name not in names_in(REPO / file)]
    assert missing == []


def test_every_bound_stands_in_one_table_with_its_default() -> None:
    """All settings that are numbers, but those that say how much there is of something, or which one it is."""
    amounts = {"port", "workers", "threads", "block_size", "parent_descriptor", "tensor_parallel"}
    table = read("docs/operations.md").partition("\n## Bounds\n")[2].partition("\n### ")[0]
    told = dict(re.findall(r"`--([a-z-]+)` \(([^;,)]*(?:,\d{3})*)", table))
    bounds = [one for one in SETTINGS if one.low is not None and one.name not in amounts]
    assert [one.flag for one in bounds if one.flag.removeprefix("--") not in told] == [] and len(bounds) > 30
    wrong = {
        one.flag: told[one.flag.removeprefix("--")]
        for one in bounds
        if one.default is not None
        and float(told[one.flag.removeprefix("--")].split()[0].replace(",", "")) != float(one.shown_default)
    }
    assert wrong == {}


def test_the_runbook_says_what_to_do_about_every_code_but_a_400s() -> None:
    """The codes and their statuses are those of the table in api.md, which is made from the OpenAPI document."""
    table = read("docs/api.md").partition("<!-- error codes")[2].partition("<!-- end of error codes")[0]
    rows = re.findall(r"^\| (\d{3})[^|]*\|[^|]*\|(.*)\|$", table, re.MULTILINE)
    wanted = {(status, code) for status, codes in rows for code in re.findall(r"(?:^|; )`(\w+)`:", codes.strip())}
    errors = read("docs/runbook.md").partition("## Errors\n")[2]
    answered = {
        (row[2:5], code)
        for row in errors.splitlines()
        if re.match(r"\| \d", row)
        for code in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    of_clients = {"400", "404", "405"}  # a wrong body, path or method
    assert {one for one in wanted if one[0] not in of_clients} == answered and len(answered) > 20


def test_changelog_and_project_have_one_version() -> None:
    newest = re.search(r"^## \[(\d+\.\d+\.\d+)\]", read("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None
    assert f'\nRELEASE = "{newest[1]}"\n' in read("setup.py")


def test_every_room_is_packaged() -> None:
    [found] = re.findall(r"^ROOMS = (.+)$", read("setup.py"), re.MULTILINE)
    assert sorted(ast.literal_eval(found)) == sorted(generate.ROOMS)


def test_the_dockerfile_copies_what_exists_and_is_sent() -> None:
    wanted = copy_sources(read("Dockerfile"))
    assert wanted
    assert [name for name in wanted if not (REPO / name).exists()] == []
    sent = [line[1:] for line in read(".dockerignore").splitlines() if line.startswith("!")]
    assert [name for name in wanted if not any(f"{name}/".startswith(f"{entry}/") for entry in sent)] == []
    assert copy_sources("COPY --chown=1000 a b \\\n  c /d/\nCOPY --from=x e f\nRUN x") == ["a", "b", "c"]


def test_the_embedded_checkpoint_is_what_its_command_writes(tmp_path: Path) -> None:
    """All of it but what was learnt: the weights and the vocabulary."""
    tokenizer = Tokenizer.from_file(str(EMBEDDED_MODEL / "tokenizer.json"))
    write_files(tmp_path, tokenizer, Sizes())
    files = sorted(path.name for path in tmp_path.iterdir())
    assert sorted(path.name for path in EMBEDDED_MODEL.iterdir()) == sorted([*files, "model.safetensors"])
    for name in files:
        assert (EMBEDDED_MODEL / name).read_bytes() == (tmp_path / name).read_bytes(), name
    assert sum(path.stat().st_size for path in EMBEDDED_MODEL.iterdir()) < 12_000_000


def test_the_accuracy_card_is_that_of_the_embedded_weights() -> None:
    digest = hashlib.sha256((EMBEDDED_MODEL / "model.safetensors").read_bytes()).hexdigest()
    assert digest[:16] in read("docs/demo-model.md")


def test_make_names_every_command() -> None:
    makefile = read("Makefile")
    for command in ("venv", "serve", "test", "check", "fmt", "long"):
        assert re.search(rf"^{command}: ", makefile, re.MULTILINE), command
