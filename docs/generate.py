"""Writes the generated parts of docs/: the map of modules, the tables of settings, of others' names and of families."""

import argparse
import ast
import graphlib
import itertools
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from configs.setting import Setting
from configs.settings import SECTIONS, SETTINGS
from configs.vllm_flags import ALIKE
from configs.vllm_flags import FLAGS as VLLM_FLAGS
from docs import mindie
from docs.field_tables import tables
from docs.media_tables import media_tables
from server import model_table
from server.http.routes.vllm_fields import FIELDS, OF_RESPONSES, VllmField

REPO = Path(__file__).resolve().parent.parent
ROOMS = ("server", "model", "tokenization", "shm", "configs")
KINDS = {
    "text": "text", "checkpoint": "an existing directory, or ORG/NAME", "paths": "existing directories",
    "path": "a directory", "file": "an existing file", "written": "a file", "prefix": "a path such as `/llm`",
    "secrets": "printable ASCII without blanks", "origins": "origins, or `*`",
    "hosts": "host names, without port", "domains": "host names, with a dot in front or not, or `*`",
    "networks": "networks of IPv4 or IPv6", "proxy": "an http:// URL without a path",
}  # fmt: skip


def sentence(path: Path) -> str | None:
    """The first sentence of a module's docstring on one line; None for a file that holds no code at all."""
    source = path.read_text(encoding="utf-8")
    if not source.strip():
        return None
    first = " ".join((ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0].split())
    return re.split(r"(?<=\w[.]) (?=[A-Z])", first)[0]


def modules(repo: Path) -> str:
    """A table for each wing, from the floor that imports the others down to the one that imports none of them."""
    lines: list[str] = []
    for room in ROOMS:
        for wing in sorted({path.parent for path in (repo / room).rglob("*.py")}):
            said = {path: text for path in sorted(wing.glob("*.py")) if (text := sentence(path)) is not None}
            if not said:
                continue
            floors = floors_of(list(said), repo)
            lines += [
                f"### {wing.relative_to(repo).as_posix()}/",
                "",
                "| floor | module | what it is |",
                "|---|---|---|",
            ]
            for path in sorted(said, key=lambda path: (-floors[path], path.name)):
                text = said[path].removesuffix(".").replace("|", chr(92) + "|")
                lines.append(f"| {floors[path]} | `{path.name}` | {text} |")
            lines.append("")
    return "\n".join(lines)


def floors_of(paths: Sequence[Path], repo: Path) -> dict[Path, int]:
    """1 for a module that imports none of the others, and one more than the highest that it imports for the rest.

    Late imports count. Raises graphlib.CycleError where they go in a circle.
    """
    by_name = {path.relative_to(repo).with_suffix("").as_posix().replace("/", "."): path for path in paths}
    needs = {path: {by_name[name] for name in imports(path) if name in by_name} - {path} for path in paths}
    floors: dict[Path, int] = {}
    for path in graphlib.TopologicalSorter(needs).static_order():
        floors[path] = 1 + max((floors[below] for below in needs[path]), default=0)
    return floors


def imports(path: Path) -> set[str]:
    """Dotted names that a module imports, at its top or later."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def settings() -> str:
    """One table per section of ServeConfig."""
    lines: list[str] = []
    for section, title in SECTIONS.items():
        lines += [f"### {title}", "", "| setting | default | range or choices | what it says |", "|---|---|---|---|"]
        for setting in SETTINGS:
            if setting.section == section:
                default = "" if setting.default in (None, ()) else f"`{setting.shown_default}`"
                lines.append(f"| `{setting.name}` | {default} | {allowed(setting)} | {setting.help} |")
        lines.append("")
    return "\n".join(lines)


def allowed(setting: Setting) -> str:
    """What a setting takes, in words."""
    if setting.choices:
        return ", ".join(setting.choices)
    if setting.kind == "switch":
        return "true, false"
    if setting.low is not None and setting.high is not None:
        return f"{setting.low:,} to {setting.high:,} {setting.unit}".strip()
    return KINDS[setting.kind]


def fields(known: Sequence[VllmField]) -> str:
    """One row for each request field."""
    lines = ["| field | | passes | |", "|---|---|---|---|"]
    for field in known:
        passes = ", ".join(f"`{json.dumps(value)}`" for value in field.neutral)
        lines.append(f"| `{field.name}` | {field.treatment} | {passes} | {field.note} |")
    return "\n".join(lines)


def flags() -> str:
    """The flags of vLLM's server; those that are told the same share a row."""
    lines = ["| flags of vLLM | | |", "|---|---|---|"]
    lines.append(f"| {', '.join(f'`{name}`' for name in ALIKE)} | ours | the same |")
    for (kind, told), found in itertools.groupby(VLLM_FLAGS, lambda flag: (flag.kind, flag.told)):
        lines.append(f"| {', '.join(f'`{flag.name}`' for flag in found)} | {kind} | {told} |")
    return "\n".join(lines)


def counterparts(rows: Mapping[str, Sequence[mindie.Counterpart]], title: str) -> str:
    """What names of others are here, in groups."""
    lines = [f"| | {title} | | |", "|---|---|---|---|"]
    for group, found in rows.items():
        for row in found:
            lines.append(f"| {group} | {', '.join(f'`{name}`' for name in row.names)} | {row.kind} | {row.told} |")
    return "\n".join(lines)


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
    generated = {
        "map.md": {"modules": modules(repo)},
        "configuration.md": {"settings": settings()},
        "compat.md": {"fields": fields(FIELDS), "responses": fields(OF_RESPONSES)},
        "migrating.md": {
            "flags": flags(),
            "keys": counterparts(mindie.KEYS, "MindIE"),
            "requests": counterparts(mindie.FIELDS, "field"),
        },
        "models.md": {"families": model_table.as_markdown()},
        "api.md": {**tables(), **media_tables()},
    }
    found = {}
    for page, parts in generated.items():
        text = (repo / "docs" / page).read_text(encoding="utf-8")
        for name, content in parts.items():
            text = filled(text, name, content)
        found[repo / "docs" / page] = text
    return found


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
