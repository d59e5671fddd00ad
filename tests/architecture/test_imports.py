"""Imports go right only, the host is free of torch, and `import model` means this repository's."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.laws import ROOMS
from tests.tables import each_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.slow

REPO = Path(__file__).resolve().parents[2]
HOST = REPO / "tests" / "architecture" / "host_modules.py"


def lint_imports(cwd: Path, config: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter as `make check` does, on the packages in `cwd`."""
    program = (
        "import sys; sys.path.insert(0, ''); from importlinter.cli import lint_imports; "
        "sys.exit(lint_imports(config_filename=sys.argv[1], no_cache=True))"
    )
    return subprocess.run(
        [sys.executable, "-c", program, str(config)], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_imports_go_right_only() -> None:
    done = lint_imports(REPO, REPO / "pyproject.toml")
    assert done.returncode == 0, done.stdout + done.stderr


PLANTS = [  # (contract, who imports, what it must not import)
    ("imports go right only", "shm.pool", "tokenization.chat.dialects"),
    ("imports go right only", "tokenization.chat.dialects", "model.registry"),
    ("server: http -> requests -> children", "server.requests.service", "server.http.errors"),
    ("server: http -> requests -> children", "server.children.supervisor", "server.requests.refusal"),
    ("server: http -> requests -> children", "server.report", "server.hub.client"),
    ("server: http -> requests -> children", "server.metrics", "server.children.supervisor"),
    ("server: http -> requests -> children", "server.run", "server.loadtest.run"),
    ("server: http -> requests -> children", "server.http.app", "server.doctor.command"),
    ("server: http -> requests -> children", "server.housekeeping", "server.selftest.command"),
    ("server: only a child's own main runs a room", "server.http.app", "tokenization.worker"),
    ("fetching: loop -> fetch", "server.fetching.target", "server.fetching.connections"),
    ("fetching: it opens no media", "server.fetching.fetch", "tokenization.media.image"),
    ("loadtest: command -> run", "server.loadtest.wire.exchange", "server.loadtest.driving.pacing"),
    ("loadtest: command -> run", "server.loadtest.results.page", "server.loadtest.traffic.mixes"),
    ("loadtest: a program of its own", "server.loadtest.traffic.requests", "server.http.routes.chat_completions"),
    ("loadtest: a program of its own", "server.loadtest.driving.target", "shm"),
    ("doctor: a program of its own", "server.doctor.limits", "server.http.health"),
    ("doctor: a program of its own", "server.doctor.machine", "model.device"),
    ("selftest: a program of its own", "server.selftest.children", "server.children.supervisor"),
    ("selftest: a program of its own", "server.selftest.report", "server.report"),
    ("doctor: command -> what it looks at", "server.doctor.machine", "server.doctor.devices"),
    ("tokenization: worker -> prepare", "tokenization.chat.parts", "tokenization.text.bpe"),
    ("tokenization: worker -> prepare", "tokenization.media.image", "tokenization.text.template"),
    ("tokenization: worker -> prepare", "tokenization.media.source", "tokenization.processor"),
    ("tokenization: worker -> prepare", "tokenization.processor", "tokenization.prepare"),
    ("tokenization: what the HTTP process loads", "tokenization.placeholders", "tokenization.media.audio"),
    ("model: engine -> registry", "model.net.decoder", "model.families.one.recipe"),
    ("model: engine -> registry", "model.families.one.recipe", "model.engine.engine"),
    ("families do not know each other", "model.families.one.processor", "model.families.two.recipe"),
]


def plant(root: Path, *, offences: bool) -> str:
    """Write the modules of this tree and two families, all empty but for the offences; what import-linter says."""
    modules = [path.relative_to(REPO) for room in ROOMS for path in (REPO / room).rglob("*.py")]
    modules = [path for path in modules if path.parts[:2] != ("model", "families") or len(path.parts) == 3]
    families = [Path("model/families", family) for family in ("one", "two")]
    modules += [family / name for family in families for name in ("__init__.py", "processor.py", "recipe.py")]
    for path in modules:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    for _, importer, imported in PLANTS if offences else ():
        with (root / importer.replace(".", "/")).with_suffix(".py").open("a") as file:
            file.write(f"def f():\n    import {imported}\n")  # also where it is imported late
    return lint_imports(root, REPO / "pyproject.toml").stdout


def test_a_tree_without_offences_is_clean(tmp_path: Path) -> None:
    assert " BROKEN" not in plant(tmp_path, offences=False)


@pytest.fixture(scope="module")
def broken_contracts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What import-linter says of a tree with all the offences."""
    return plant(tmp_path_factory.mktemp("planted"), offences=True)


@each_of(("contract", "importer", "imported"), PLANTS)
def test_a_planted_import_is_seen(contract: str, importer: str, imported: str, broken_contracts: str) -> None:
    broken = [line for line in broken_contracts.splitlines() if line.endswith(" BROKEN")]
    assert any(line.startswith(contract) for line in broken)
    assert f"{importer} -> {imported} " in broken_contracts


def contracts() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    return found


PROGRAMS: dict[str, set[str]] = {
    "loadtest": set(),
    "doctor": {"descriptors", "logs", "thread_limit"},
    "selftest": {"children.processes", "children.stderr_relay", "usage", "engine_environment"},
}


@each_of("program", PROGRAMS)
def test_a_program_beside_the_service_may_import_these_modules_of_the_server_alone(program: str) -> None:
    """A module that is new in the server is named in the list, or allowed here."""
    (forbidden,) = (
        set(one["forbidden_modules"]) for one in contracts() if one["name"] == f"{program}: a program of its own"
    )
    paths = [*(REPO / "server").glob("[!_]*"), *(REPO / "server" / "children").glob("[!_]*.py")]
    names = {".".join(path.relative_to(REPO).with_suffix("").parts) for path in paths} - {f"server.{program}"}
    free = {name for name in names if name not in forbidden and name.rpartition(".")[0] not in forbidden}
    assert free - {"server.children"} == {f"server.{name}" for name in PROGRAMS[program]}


def test_every_contract_has_a_plant() -> None:
    without = [
        contract["name"]
        for contract in contracts()
        if not any(contract["name"].startswith(planted) for planted, _, _ in PLANTS)
    ]
    assert without == []


def run_host(statement: str) -> subprocess.CompletedProcess[str]:
    """Import every module of the torch-free set in a fresh process, then run `statement`."""
    program = f"import runpy; names = runpy.run_path({str(HOST)!r})['import_all'](); {statement}"
    return subprocess.run([sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, check=False)


def test_the_host_never_loads_torch() -> None:
    done = run_host("import sys; assert len(names) > 20, names; assert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr


HTTP_PROCESS = """
import sys
from server.commands import main
from configs.settings import load_config
from server.requests.model_card import read_model_card
read_model_card(load_config([]))
def loaded():
    return [name for name in ("torch", "av", "PIL", "tokenization.worker", "model.engine.loop") if name in sys.modules]
assert not loaded(), loaded()
import tokenization.media.image
assert "PIL" in loaded(), "what is planted would be seen"
"""


def test_the_process_that_faces_the_network_opens_no_media() -> None:
    """It has read its checkpoint and stands before its first request. tests/e2e looks at one that has answered."""
    done = subprocess.run([sys.executable, "-c", HTTP_PROCESS], cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_import_model_is_this_repository() -> None:
    program = "import model, server, configs; print(model.__file__, server.__file__, configs.__file__, sep='\\n')"
    for cwd in (REPO, Path("/")):  # from elsewhere: by the editable install, as the `pixelferry` script sees it
        done = subprocess.run([sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        files = [Path(line) for line in done.stdout.split()]
        assert [file.parent.parent for file in files] == [REPO] * 3
