"""Writes the generated parts of docs/: the module map from docstrings, the tables of settings. Runs no server."""

import argparse
import ast
import sys
from pathlib import Path

from configs.table import SETTINGS, Setting

REPO = Path(__file__).resolve().parent.parent
ROOMS = ("server", "model", "tokenization", "shm", "configs")
SECTIONS = {
    "model": "What is served",
    "http": "HTTP",
    "media": "Media",
    "shm": "Shared memory",
    "engine": "Engine",
    "": "Processes",
}
KINDS = {"text": "text", "directory": "an existing directory", "paths": "existing directories", "path": "a directory"}


def sentence(path: Path) -> str | None:
    """The first paragraph of a module's docstring on one line; None for a file that holds no code at all."""
    source = path.read_text(encoding="utf-8")
    if not source.strip():
        return None
    docstring = ast.get_docstring(ast.parse(source)) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def modules(repo: Path) -> str:
    """One table per room: every module that holds code, and its sentence."""
    lines: list[str] = []
    for room in ROOMS:
        lines += [f"### {room}/", "", "| module | in one sentence |", "|---|---|"]
        for path in sorted((repo / room).rglob("*.py")):
            text = sentence(path)
            if text is not None:
                lines.append(f"| `{path.relative_to(repo).as_posix()}` | {text.replace('|', chr(92) + '|')} |")
        lines.append("")
    return "\n".join(lines)


def settings() -> str:
    """One table per section of ServeConfig."""
    lines: list[str] = []
    for section, title in SECTIONS.items():
        lines += [f"### {title}", "", "| setting | default | range or choices | what it says |", "|---|---|---|---|"]
        for setting in SETTINGS:
            if setting.section == section:
                default = "" if setting.default in (None, ()) else f"`{setting.default}`"
                lines.append(f"| `{setting.name}` | {default} | {allowed(setting)} | {setting.help} |")
        lines.append("")
    return "\n".join(lines)


def allowed(setting: Setting) -> str:
    """What a setting takes, in words."""
    if setting.choices:
        return ", ".join(setting.choices)
    if setting.low is not None and setting.high is not None:
        return f"{setting.low:,} to {setting.high:,} {setting.unit}".strip()
    return KINDS[setting.kind]


def filled(text: str, name: str, content: str) -> str:
    """`text` with what stands between the marks of `name` replaced by `content`. Raises ValueError without marks."""
    begin, end = f"<!-- {name}: written by `make docs` -->", f"<!-- end of {name} -->"
    head, found_begin, rest = text.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"the marks of {name!r} are missing")
    return f"{head}{begin}\n\n{content.strip()}\n\n{end}{tail}"


def pages(repo: Path) -> dict[Path, str]:
    """Every page that has a generated part, as it should read."""
    generated = {"map.md": ("modules", modules(repo)), "configuration.md": ("settings", settings())}
    return {
        repo / "docs" / page: filled((repo / "docs" / page).read_text(encoding="utf-8"), name, content)
        for page, (name, content) in generated.items()
    }


def main(argv: list[str]) -> int:
    """Write the pages; with --check, only say which ones are out of date and answer 1 when any is."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=main.__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args(argv).check
    stale = [path for path, text in pages(REPO).items() if path.read_text(encoding="utf-8") != text]
    for path in stale:
        if check:
            print(f"{path.relative_to(REPO)} is out of date: run `make docs`", file=sys.stderr)
        else:
            path.write_text(pages(REPO)[path], encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
