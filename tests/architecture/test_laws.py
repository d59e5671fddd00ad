"""The tree obeys its laws, and each law sees a planted offence."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.architecture import laws

REPO = Path(__file__).resolve().parents[2]
WIDE = "word " * 20 + "."  # one character more than a line of prose may have
LONG_BODY = "".join(f"    x = {n}\n" for n in range(60))

REGISTRY = '"""Doc."""\nFAMILIES = {\n    "QuickForCausalLM": "model.families.fast_vl.processor",\n}\n'

Law = Callable[[Path], list[str]]
PLANTS: list[tuple[Law, str, str]] = [
    (laws.long_files, "server/long.py", '"""Doc."""\n' * 301),
    (laws.long_wings, "server/loadtest/long.py", '"""Doc."""\n' * 2901),
    (laws.long_functions, "model/net/long.py", f'"""Doc."""\ndef f():\n{LONG_BODY}'),
    (laws.modules_without_docstring, "shm/silent.py", "x = 1\n"),
    (laws.wide_folders, "shm/sixteenth.py", '"""Doc."""\n'),
    (laws.untested_modules, "server/http/a.py", '"""Doc."""\n'),
    (laws.ways_past_the_front_door, "server/a.py", '"""Doc."""\nfrom shm.pool import Pool\n'),
    (laws.ways_past_the_front_door, "demo/a.py", '"""Doc."""\ndef f():\n    import shm.segment\n'),
    (laws.names_without_meaning, "server/utils/a.py", '"""Doc."""\n'),
    (laws.names_without_meaning, "server/shm_helper.py", '"""Doc."""\n'),
    (laws.names_twice, "server/a.py", '"""Doc."""\nclass Once: pass\n'),
    (laws.names_twice, "model/engine/a.py", '"""Doc."""\nOnce: TypeAlias = int | str\n'),
    (laws.names_twice, "tokenization/a.py", '"""Doc."""\n_Walker = tuple[int, ...]\n'),
    (laws.mentions_of_models, "server/a.py", '"""Doc."""\nif name == "Fast-VL": pass\n'),
    (laws.mentions_of_models, "tokenization/a.py", '"""The original Fast."""\n'),
    (laws.mentions_of_models, "model/net/fast_vit.py", '"""Doc."""\nfast_vit = 1\n'),
    (laws.mentions_of_models, "model/families/slow/a.py", '"""Unlike Fast-VL."""\n'),
    (laws.mentions_of_models, "model/engine/a.py", '"""Knows FastVLForConditionalGeneration."""\nFastVL = 1\n'),
    (laws.mentions_of_models, "model/engine/a.py", '"""Doc."""\nclass NotFast: pass\n'),
    (laws.mentions_of_models, "model/net/fast_tower.py", '"""Doc."""\n'),
    (laws.mentions_of_models, "model/net/b.py", '"""Of Fast."""\nx = 1  # Fast has it so\n'),
    (laws.mentions_of_models, "model/ops/b.py", '"""Doc."""\nx = 1  # Fast has it so\n'),
    (laws.mentions_of_models, "model/families/slow/b.py", '"""Doc."""\nx.expect("kind", ("fast",), "fast")\n'),
    (laws.mentions_of_models, "model/engine/a.py", '"""Doc."""\nknown = ["QuickForCausalLM"]\n'),
    (laws.mentions_of_models, "model/engine/a.py", '"""Doc."""\nif family.name == "swift": pass\n'),
    (laws.mentions_of_models, "model/families/slow/a.py", '"""Doc."""\nif name == "swift_2": pass\n'),
    (laws.mentions_of_models, "model/registry.py", f'{REGISTRY}DEFAULT = "QuickForCausalLM"\n'),
    (laws.mentions_of_models, "configs/profiles/a.toml", "# for Fast\n"),
    (laws.lines_of_the_registry, "model/families/slow/__init__.py", ""),
    (laws.lines_of_the_registry, "model/families/slow.py", '"""Doc."""\n'),
    (
        laws.lines_of_the_registry,
        "model/registry.py",
        f'{REGISTRY}MORE = {{\n    "Slow": "model.families.slow.family",\n}}\n',
    ),
    (laws.mentions_of_shared_memory, "server/a.py", '"""Doc."""\nROOT = f"/dev/shm/{1}"\n'),
    (laws.open_ends, "server/a.py", '"""Doc."""\n# TO' + "DO later\n"),
    (laws.wide_prose, "README.zh.md", f"{WIDE}\n"),
    (laws.wide_prose, "docs/adr/a.md", f"1. An item:\n\n    {WIDE}\n"),
    (laws.wide_prose, "docs/a.md", f"```\n{WIDE}\n```\n\n- {WIDE}\n"),
    (laws.wide_prose, "CONTRIBUTING.md", f"Short.\n    {WIDE}\n"),
    (laws.wide_prose, "CHANGELOG.md", f"- See `{WIDE}`\n"),
    (laws.dead_links, "README.md", "[A page](docs/gone.md)\n"),
    (laws.dead_links, "docs/a.md", "# One\n\n| [that](#two) |\n"),
    (laws.dead_links, "docs/a.md", "[`it`](linked.md#the-map-2)\n"),
    (laws.dead_links, "docs/a.md", "```\n# One\n```\n\n- a wrapped\n  link](#one)\n"),
    (laws.dead_links, "README.zh.md", "## 与其他服务器\n\n[与](#与其他服务器对比)\n"),
]
CLEAN = {
    "model/registry.py": REGISTRY,
    "model/families/__init__.py": "",
    "model/families/fast_vl/__init__.py": "",
    "model/families/fast_vl/fast_audio.py": '"""FastVL, fast audio."""\n',
    "model/families/fast_vl/processor.py": '"""FastVL."""\nFAMILY = Family(\n    name="swift",\n)\n',
    "model/net/fine.py": '"""Breakfast, swiftly."""\nx = 1  # Fast-VL has it so\n',
    "model/families/slow/fine.py": '"""Doc."""\nx.expect("model_type", ("fast_vl",), "fast_vl")\n',
    "configs/settings.py": '"""Doc, /dev/shm in a docstring."""\n',
    "shm/owner.py": '"""Doc."""\nROOT = "/dev/shm"\nOnce = Literal["a"]\nT = TypeVar("T")\nclass _Walker: pass\n',
    "configs/owner.py": '"""Doc."""\nT = TypeVar("T")\nTyped = TypeVar("Typed")\nROOT = 1\nclass Typed: pass\n',
    **{f"shm/module_{n}.py": '"""Doc."""\n' for n in range(laws.MAX_MODULES - 1)},
    "tests/server/test_fine.py": '"""Doc."""\n',
    "tests/server/test_a.py": '"""Doc."""\n',
    "README.md": f"# [Pages](https://host/{'page/' * 20})\n\n{WIDE[:-1]}\n\n    {WIDE}\n\n    {WIDE}\n",
    "docs/adr/fine.md": f"| {WIDE} |\n\n```text\n{WIDE}\n```\n\n- `{WIDE}`\n- https://host/{'page/' * 20}\n",
    "docs/linked.md": "# The [Map](https://a.b)\n\n## The `map`\n\n## 与其他服务器对比: a_b, c/d\n\n[1](#the-map)\n"
    "[2](#the-map-1) [3](#与其他服务器对比-a_b-cd) [4](../README.md) [5](../server/fine.py) `[6](#gone)`\n\n"
    "    [7](#gone)\n",
    "server/fine.py": f'"""Doc."""\ndef f():\n{LONG_BODY[: -len("    x = 59" + chr(10))]}',
}
LAWS = list(dict.fromkeys(law for law, _, _ in PLANTS))


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A small tree that breaks no law."""
    for name, text in CLEAN.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_the_tree_obeys(law: Law) -> None:
    assert law(REPO) == []


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_a_clean_tree_is_clean(law: Law, planted: Path) -> None:
    assert law(planted) == []


@pytest.mark.parametrize(("law", "name", "text"), PLANTS, ids=lambda value: getattr(value, "__name__", None))
def test_an_offence_is_seen(law: Law, name: str, text: str, planted: Path) -> None:
    (planted / name).parent.mkdir(parents=True, exist_ok=True)
    (planted / name).write_text(text)
    assert len(law(planted)) == 1


def test_the_laws_look_at_something() -> None:
    assert len(list(laws.sources(REPO, laws.ROOMS))) > 20
