"""The tree obeys its laws, each law sees a planted offence, and what is imported is declared and pinned."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.architecture import laws
from tests.tables import each_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.slow

REPO = Path(__file__).resolve().parents[2]
EXTRAS = ("hub", "modelscope", "otel")
# Where a module and its project, or its projects, have different names.
CALLED = {
    "agents": {"openai-agents"},
    "llama_index": {"llama-index-core", "llama-index-llms-openai-like"},
    "pydantic_ai": {"pydantic-ai-slim"},
    "PIL": {"pillow"},
    "skia": {"skia-python"},
    "yaml": {"pyyaml"},
    "opentelemetry": {"opentelemetry-api", "opentelemetry-exporter-otlp-proto-http", "opentelemetry-sdk"},
}
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WIDE = "word " * 20 + "."  # one character more than a line of prose may have
LONG_BODY = "".join(f"    x = {n}\n" for n in range(60))

REGISTRY = '"""Doc."""\nFAMILIES = {\n    "QuickForCausalLM": "model.families.fast_vl.processor",\n}\n'

Law = Callable[[Path], list[str]]
PLANTS: list[tuple[Law, str, str]] = [
    (laws.long_files, "server/long.py", '"""Doc."""\n' * 501),
    (laws.long_wings, "server/loadtest/long.py", '"""Doc."""\n' * 3801),
    (laws.long_functions, "model/net/long.py", f'"""Doc."""\ndef f():\n{LONG_BODY}'),
    (laws.modules_without_docstring, "shm/silent.py", "x = 1\n"),
    (laws.wide_folders, "shm/sixteenth.py", '"""Doc."""\n'),
    (laws.ways_past_the_front_door, "server/a.py", '"""Doc."""\nfrom shm.pool import Pool\n'),
    (laws.ways_past_the_front_door, "demo/a.py", '"""Doc."""\ndef f():\n    import shm.segment\n'),
    (laws.ways_past_the_front_door, "server/a.py", '"""Doc."""\nfrom server.metrics.codes import FAULTS\n'),
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
    "README.md": f"# [Pages](https://host/{'page/' * 20})\n\n{WIDE[:-1]}\n\n    {WIDE}\n\n    {WIDE}\n",
    "docs/adr/fine.md": f"| {WIDE} |\n\n```text\n{WIDE}\n```\n\n- `{WIDE}`\n- https://host/{'page/' * 20}\n",
    "docs/linked.md": "# The [Map](https://a.b)\n\n## The `map`\n\n## 与其他服务器对比: a_b, c/d\n\n[1](#the-map)\n"
    "[2](#the-map-1) [3](#与其他服务器对比-a_b-cd) [4](../README.md) [5](../server/fine.py) `[6](#gone)`\n\n"
    "    [7](#gone)\n",
    "server/fine.py": f'"""Doc."""\ndef f():\n{LONG_BODY[: -len("    x = 59" + chr(10))]}',
}
LAWS = list(dict.fromkeys(law for law, _, _ in PLANTS))


def clean(root: Path) -> Path:
    """A small tree that breaks no law."""
    for name, text in CLEAN.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def broken(root: Path) -> dict[str, list[str]]:
    """The offences of each law that is not obeyed."""
    return {law.__name__: offences for law in LAWS if (offences := law(root))}


def test_the_tree_obeys() -> None:
    assert broken(REPO) == {}


def test_a_clean_tree_is_clean(tmp_path: Path) -> None:
    assert broken(clean(tmp_path)) == {}


@each_of("law, name, text", PLANTS, ids=lambda value: getattr(value, "__name__", value))
def test_an_offence_is_seen(law: Law, name: str, text: str, tmp_path: Path) -> None:
    planted = clean(tmp_path)
    (planted / name).parent.mkdir(parents=True, exist_ok=True)
    (planted / name).write_text(text)
    assert len(law(planted)) == 1


def test_the_laws_look_at_something() -> None:
    assert len(list(laws.sources(REPO, laws.ROOMS))) > 20


def test_every_dependency_is_pinned() -> None:
    runtime = {name_of(line) for line in PROJECT["dependencies"]}
    tests = {name_of(line) for line in PROJECT["optional-dependencies"]["test"]}
    extras = {name_of(line) for extra in EXTRAS for line in PROJECT["optional-dependencies"][extra]}
    assert runtime | tests | extras | {"ray"} <= pins("constraints/cpu.txt").keys()
    npu = {name_of(line) for line in PROJECT["optional-dependencies"]["npu"]}
    assert runtime | extras | npu <= pins("constraints/ascend.txt").keys()
    assert "torch==2.13.0" in pins("constraints/cpu.txt")["torch"]
    assert pins("constraints/ascend.txt")["torch"] == [
        'torch==2.10.0; platform_machine != "x86_64"',
        'torch==2.10.0+cpu; platform_machine == "x86_64"',  # the one build that torch_npu takes there
    ]
    assert pins("constraints/ascend.txt")["torch-npu"] == ["torch_npu==2.10.0.post4"]
    assert not {"torch-npu", "transformers"} & pins("constraints/ascend.txt").keys() - {"torch-npu"}
    assert "torch-npu" not in pins("constraints/cpu.txt")


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    imported = projects(laws.third_parties(REPO, laws.ROOMS)) - {"tomli", "torch-npu"}
    declared = {name_of(line) for line in PROJECT["dependencies"]} - {"tomli"}
    optional = {name_of(line) for extra in EXTRAS for line in PROJECT["optional-dependencies"][extra]}
    assert imported == declared | optional
    others = laws.third_parties(REPO, ("tests", "benchmarks", "demo", "deploy/ray", "docs", "examples", "constraints"))
    apart = {"ray", *pins("benchmarks/independent_exam/requirements.txt")}  # environments of their own
    for_tests = projects(others) - of_clients() - apart
    assert for_tests - {"tomli"} <= declared | {name_of(line) for line in PROJECT["optional-dependencies"]["test"]}


def of_clients() -> set[str]:
    """What clients' scripts import besides: each is pinned in its environment."""
    asked = projects(
        set("agents anthropic instructor langchain_core langchain_openai litellm llama_index pydantic_ai".split())
    )
    pinned = {name for path in (REPO / "tests" / "clients" / "pins").iterdir() for name in pins(str(path))}
    assert asked <= pinned
    return asked


def projects(modules: set[str]) -> set[str]:
    """The normalized names of what brings these top-level modules."""
    return {name_of(project) for module in modules for project in CALLED.get(module, {module})}


def pins(name: str) -> dict[str, list[str]]:
    """Constraint lines by normalized project name."""
    found: dict[str, list[str]] = {}
    for line in (REPO / name).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            assert re.match(r"[\w.-]+==[\w.+]+($|; )", line), line
            found.setdefault(name_of(line), []).append(line)
    return found


def name_of(requirement: str) -> str:
    """The normalized project name of a requirement."""
    return re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")
