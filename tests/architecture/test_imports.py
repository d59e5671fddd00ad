"""Imports go right only, the host is free of torch, and `import model` means this repository's."""

import subprocess
import sys
from pathlib import Path

import pytest

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


def plant_tree(root: Path) -> None:
    """A tree with the packages of this one, in which nothing imports anything."""
    for room in ("server", "model", "tokenization", "shm", "configs"):
        for path in [REPO / room, *(path.parent for path in (REPO / room).rglob("__init__.py"))]:
            (root / path.relative_to(REPO)).mkdir(parents=True, exist_ok=True)
            (root / path.relative_to(REPO) / "__init__.py").write_text("")
    for family in ("one", "two"):
        (root / "model" / "families" / family).mkdir()
        (root / "model" / "families" / family / "__init__.py").write_text("")
        (root / "model" / "families" / family / "recipe.py").write_text("")


def test_imports_go_right_only() -> None:
    done = lint_imports(REPO, REPO / "pyproject.toml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("shm/pool.py", "import tokenization.chat.dialects\n"),
        ("tokenization/chat/dialects.py", "def f():\n    from model import registry\n"),
        ("model/families/one/processor.py", "import model.families.two.recipe\n"),
    ],
)
def test_a_planted_import_to_the_left_is_seen(module: str, line: str, tmp_path: Path) -> None:
    plant_tree(tmp_path)
    clean = lint_imports(tmp_path, REPO / "pyproject.toml")
    assert clean.returncode == 0, clean.stdout + clean.stderr
    (tmp_path / module).write_text(line)
    assert lint_imports(tmp_path, REPO / "pyproject.toml").returncode == 1


def run_host(statement: str) -> subprocess.CompletedProcess[str]:
    """Import every module of the torch-free set in a fresh process, then run `statement`."""
    program = f"import runpy; names = runpy.run_path({str(HOST)!r})['import_all'](); {statement}"
    return subprocess.run([sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, check=False)


def test_the_host_never_loads_torch() -> None:
    done = run_host("import sys; assert len(names) > 20, names; assert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_a_torch_in_the_host_would_be_seen() -> None:
    done = run_host("import torch, sys; assert 'torch' not in sys.modules")
    assert done.returncode == 1


def test_import_model_is_this_repository() -> None:
    program = "import model, server, configs; print(model.__file__, server.__file__, configs.__file__, sep='\\n')"
    for cwd in (REPO, Path("/")):  # from elsewhere: by the editable install, as the `pixelferry` script sees it
        done = subprocess.run([sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        files = [Path(line) for line in done.stdout.split()]
        assert [file.parent.parent for file in files] == [REPO] * 3
