"""What the laws of this tree are, as functions over a directory: each answers with the offences it finds."""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from io import StringIO
from pathlib import Path
from tokenize import COMMENT, generate_tokens

from tests.architecture.parsed import module

ROOMS = ("server", "model", "tokenization", "shm", "configs")
CODE = (*ROOMS, "tests", "benchmarks", "demo", "deploy", "docs", "examples", "constraints")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_MODULES = 15  # directly in one folder of a room
WING_LINES = {"server/loadtest": 3_800}  # of a wing that is complete; to raise one takes a line in docs/log.md
MAX_PROSE = 100  # characters of a line
PAGES = ("README*.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md")

REGISTRY = "model/registry.py"
_ENTRY = re.compile(
    r'^ +"(?P<architecture>\w+)": "model\.families\.(?P<package>\w+)\.\w+",$', re.MULTILINE
)  # of an architecture: the one place outside the packages where a model is named
_MODEL_TYPE = re.compile(
    r'"(?:model_type|tokenizer_class)", \([^()]*\)(?:, "[\w.-]+")?'
)  # what a section is expected to say of itself
_FAMILY_NAME = re.compile(r'\bFamily\(\s*name="(\w+)"')
_MARKER = re.compile(r"\s*(?:[-*+>]|\d+\.)\s+")  # of an item or a quotation


def sources(root: Path, folders: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Path and text of every Python file under the folders, as they were when a folder was first read."""
    for folder in folders:
        yield from _folder(root, folder)


@cache
def _folder(root: Path, folder: str) -> list[tuple[str, str]]:
    paths = sorted((root / folder).rglob("*.py"))
    return [(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")) for path in paths]


def long_files(root: Path) -> list[str]:
    """Files with more lines than a file that does one thing needs."""
    found = ((name, len(text.splitlines())) for name, text in sources(root, CODE))
    return [f"{name}: {lines} lines" for name, lines in found if lines > MAX_FILE_LINES]


def long_wings(root: Path) -> list[str]:
    """Wings that are complete, and grow all the same."""
    n = {wing: sum(len(text.splitlines()) for _, text in sources(root, (wing,))) for wing in WING_LINES}
    return [f"{wing}: {lines} lines" for wing, lines in n.items() if lines > WING_LINES[wing]]


def long_functions(root: Path) -> list[str]:
    """Functions with more lines than a function that does one thing needs; the whole `def`, docstring included."""
    found = ((name, function) for name, text in sources(root, CODE) for function in module(text).functions)
    return [
        f"{name}:{function.line} {function.name}: {function.lines} lines"
        for name, function in found
        if function.lines > MAX_FUNCTION_LINES
    ]


def modules_without_docstring(root: Path) -> list[str]:
    """Modules that hold code and do not say what they are."""
    return [name for name, text in sources(root, CODE) if text.strip() and not module(text).documented]


def wide_folders(root: Path) -> list[str]:
    """Folders of the rooms with more modules than a reader takes in at one look; they have walls missing."""
    modules = [Path(name) for name, text in sources(root, ROOMS) if text.strip() or not name.endswith("__init__.py")]
    n = Counter(module.parent.as_posix() for module in modules)
    return [f"{folder}: {count} modules" for folder, count in sorted(n.items()) if count > MAX_MODULES]


def ways_past_the_front_door(root: Path) -> list[str]:
    """Imports of a module of shm/, or of server/metrics, from outside it: all that can be asked of these is in the
    package itself."""
    others = ("server", "model", "tokenization", "configs", "benchmarks", "demo", "examples")
    past = {"shm": others, "server.metrics": ("server",)}
    return [
        name
        for package, folders in past.items()
        for name, text in sources(root, folders)
        if not name.startswith(package.replace(".", "/"))
        and re.search(rf"^\s*(?:from|import) {re.escape(package)}\.\w", text, re.MULTILINE)
    ]


def names_without_meaning(root: Path) -> list[str]:
    """Modules and folders called by names that say nothing."""
    banned = {"utils", "util", "common", "helper", "helpers", "manager", "misc"}
    return [name for name, _ in sources(root, CODE) if banned & set(re.split(r"[/_.]", name))]


def names_twice(root: Path) -> list[str]:
    """Classes and aliases of types in the rooms whose name another module has given, too."""
    homes: dict[str, list[str]] = {}
    for path, text in sources(root, ROOMS):
        for name in module(text).types:
            homes.setdefault(name, []).append(path)
    return [f"{name}: {', '.join(paths)}" for name, paths in sorted(homes.items()) if len(paths) > 1]


def mentions_of_models(root: Path) -> list[str]:
    """Places that name a line of models outside its packages and its lines of the registry; comments and docstrings
    count, and so do names of files, and the profiles of settings. A `model_type` or `tokenizer_class` that is expected
    of a checkpoint does not, nor do comments of model/net: a rule there may be one model's own.

    A line's names: what its packages' names begin with (`qwen_vl`, `qwen2`: qwen), what its families call themselves,
    and its architectures. Packages of one line may name each other's models, which they compare themselves with.
    """
    entries = list(_ENTRY.finditer((root / REGISTRY).read_text(encoding="utf-8")))
    packages = sorted(path.parent.name for path in (root / "model" / "families").glob("*/__init__.py"))
    places = [*sources(root, ROOMS), *_profiles(root)]
    offences = []
    for line in sorted({re.split(r"[\d_]", package)[0] for package in packages}):
        own = [package for package in packages if package.startswith(line)]
        homes = tuple(f"model/families/{package}/" for package in own)
        names = {entry["architecture"] for entry in entries if entry["package"] in own}
        names |= {name for path, text in places if path.startswith(homes) for name in _FAMILY_NAME.findall(text)}
        pattern = _named(line, names)
        for path, text in places:
            rest = _ENTRY.sub("", text) if path == REGISTRY else f"{path}\n{_MODEL_TYPE.sub('', text)}"
            rest = _without_comments(rest) if path.startswith("model/net/") else rest
            if not path.startswith(homes) and pattern.search(rest):
                offences.append(f"{path} names {line}")
    return offences


def _without_comments(text: str) -> str:
    """Of a module behind its path."""
    path, _, code = text.partition("\n")
    tokens = [token for token in generate_tokens(StringIO(code).readline) if token.type != COMMENT]
    return "\n".join([path, *(token.string for token in tokens)])


def _profiles(root: Path) -> Iterator[tuple[str, str]]:
    for path in sorted((root / "configs").rglob("*.toml")):
        yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def _named(line: str, names: set[str]) -> re.Pattern[str]:
    """Words that begin with the line, or go on with it capitalised; the names as words of their own, in any case."""
    words = "|".join(sorted(names | {line}))
    return re.compile(rf"(?i:(?<![a-z])(?:{line}|(?:{words})(?![a-z])))|(?<=[a-z]){line.capitalize()}")


def lines_of_the_registry(root: Path) -> list[str]:
    """Packages of families that no line of the registry names, and lines that name none; each is found by its line."""
    named = {entry["package"] for entry in _ENTRY.finditer((root / REGISTRY).read_text(encoding="utf-8"))}
    there = {path.parent.name for path in (root / "model" / "families").glob("*/__init__.py")}
    loose = [path.name for path in (root / "model" / "families").glob("*.py") if path.name != "__init__.py"]
    return [*(f"{name}: a package or a line is missing" for name in sorted(named ^ there)), *loose]


def mentions_of_shared_memory(root: Path) -> list[str]:
    """Strings outside shm/ that name /dev/shm; docstrings and comments may."""
    offences = []
    for name, text in sources(root, ("server", "model", "tokenization", "configs")):
        tree = ast.parse(text if "/dev" in text else "")
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "/dev/shm" in node.value:
                if id(node) not in docstrings:
                    offences.append(f"{name}:{node.lineno}")
    return offences


def open_ends(root: Path) -> list[str]:
    """Lines that say something is not finished."""
    pattern = re.compile("TO" + "DO|FIX" + "ME|XX" + "X|NotImplemented" + "Error")
    return [
        f"{name}:{number}"
        for name, text in sources(root, (*ROOMS, "benchmarks", "demo", "docs", "examples"))
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def wide_prose(root: Path) -> list[str]:
    """Lines of prose in the pages that are too long to be read, or compared, as plain text.

    Code, rows of tables and the targets of links in headings may be longer, and so may a line that holds nothing but
    one URL or one code span, which cannot be broken.
    """
    return [
        f"{path.relative_to(root).as_posix()}:{number}: {len(line)} characters"
        for pattern in PAGES
        for path in sorted(root.glob(pattern))
        for number, line in prose(path.read_text(encoding="utf-8"))
        if len(line) > MAX_PROSE and not _unbreakable(line)
    ]


def dead_links(root: Path) -> list[str]:
    """Links of the pages that lead to no file of the tree, or to no heading of a page."""
    pages = {path: path.read_text(encoding="utf-8") for name in PAGES for path in sorted(root.glob(name))}
    anchors = {path: _anchors(text) for path, text in pages.items()}
    found = []
    for path, text in pages.items():
        for number, line in outside_code(text):
            for name, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)", re.sub(r"`[^`]*`", "", line)):
                file = (path.parent / name).resolve() if name else path
                if not file.exists() or (anchor and anchor not in anchors.get(file, {anchor})):
                    found.append(f"{path.relative_to(root).as_posix()}:{number}: {name}#{anchor}")
    return found


def _anchors(page: str) -> set[str]:
    """Of its headings, by GitHub's rule (html-pipeline's TableOfContentsFilter): lower case; letters, digits, _ and -
    alone; a - for each blank; -1, -2 and so on behind what is there already.
    """
    headings = [line.strip("# ") for _, line in prose(page) if re.match(r"#{1,6} ", line)]
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return {f"{one}-{n}" if (n := plain[:i].count(one)) else one for i, one in enumerate(plain)}


def prose(page: str) -> Iterator[tuple[int, str]]:
    """Number and text of every line of a page that is neither code nor a table; headings without their links."""
    for number, line in outside_code(page):
        text = line.strip()
        if not text.startswith("|"):
            yield number, re.sub(r"\]\([^)]*\)", "]", line) if text.startswith("#") else line


def outside_code(page: str) -> Iterator[tuple[int, str]]:
    """Number and text of every line of a page that is not code, blank ones aside; a table's lines among them."""
    fence, after_blank, in_code, in_list = "", True, False, False
    for number, line in enumerate(page.splitlines(), 1):
        text = line.strip()
        if fence or text.startswith(("```", "~~~")):
            if not fence:
                fence = text[:3]
            elif text.startswith(fence):
                fence = ""
        elif text:
            # A blank line and four blanks begin code, except in a list, where they go on with an item.
            in_code = line.startswith("    ") and (in_code or (after_blank and not in_list))
            in_list = bool(_MARKER.match(line)) or (in_list and line.startswith(" "))
            if not in_code:
                yield number, line
        after_blank = not text


def _unbreakable(line: str) -> bool:
    """Whether a line, its marks of lists and quotations aside, holds no blank outside a code span."""
    return re.fullmatch(r"(?:`[^`]*`|[^\s`])+", _MARKER.sub("", line).strip()) is not None


def copy_sources(dockerfile: str) -> list[str]:
    """What a Dockerfile copies from the build context."""
    joined = dockerfile.replace("\\\n", " ")
    found = []
    for line in joined.splitlines():
        words = line.split()
        if words and words[0].upper() == "COPY" and not any(word.startswith("--from") for word in words):
            found += [word for word in words[1:-1] if not word.startswith("--")]
    return found


def third_parties(root: Path, folders: tuple[str, ...]) -> set[str]:
    """Top-level names that the folders import and that are neither the standard library's nor ours."""
    found = {name for _, text in sources(root, folders) for name in module(text).imported}
    return found - sys.stdlib_module_names - set(CODE)
