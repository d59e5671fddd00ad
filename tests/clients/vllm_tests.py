"""`make vllm-tests`: vLLM's own HTTP tests, unchanged, against this server; each must do what vllm_tests.txt says.

The tests come from vLLM's sdist on the package index, by its digest. That list names those that a server of this kind
can pass with small models, and of those that fail the reason.
"""

import ast
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from configs.vllm_flags import ALIKE, BY_NAME
from constraints.index import IndexFailure, configured
from tests.clients.run import BUILD
from tests.e2e.running import REPO
from tests.tiny.qwen2_5_omni import write_qwen2_5_omni

NAME = "vllm-0.33.0"
DIGEST = "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112"  # SHA-256 of the sdist
HOME = (BUILD / "vllm").resolve()
DEMO = REPO / "model" / "embedded" / "pixelferry-demo"
LIST = Path(__file__).with_name("vllm_tests.txt")
OF_FLAGS = ("vllm/engine/arg_utils.py", "vllm/entrypoints/common/cli_args.py")
CONTEXTS = {"demo": 4096, "random": 32768}  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A line of the list."""

    model: str  # a key of CONTEXTS
    test: str  # its id
    reason: str  # why it fails; "" where it passes


def listed() -> list[Listed]:
    """The list, without its comments."""
    lines = [line.split("\t") for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    return [Listed(model=model, test=test, reason=reason) for model, test, reason in lines]


def fetch() -> None:
    """Unpack the sdist's `tests`, and what declares its flags. Raises IndexFailure, ValueError for another file."""
    with closing(configured()) as index:
        content = index.file("vllm", f"{NAME}.tar.gz")
    if (digest := hashlib.sha256(content).hexdigest()) != DIGEST:
        raise ValueError(f"{NAME}.tar.gz has the SHA-256 {digest}, not {DIGEST}")
    shutil.rmtree(HOME / "tests", ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive.getmembers():
            member.name = member.name.removeprefix(f"{NAME}/")
            if member.name.startswith("tests/") or member.name in OF_FLAGS:
                archive.extract(member, HOME, filter="data")


def random_checkpoint(path: Path) -> Path:
    """One whose answers have no end of their own, and whose tokens are whole characters of different spelling.

    Tests count the likeliest tokens by their text, and want a text in the last piece of a stream.
    """
    write_qwen2_5_omni(path)
    tensors = load_file(path / "model.safetensors")
    head = tensors["thinker.lm_head.weight"]  # [rows of the model, hidden]
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    for row in range(len(head)):
        text = tokenizer.decode([row])  # nothing, for a special token
        if not (text.isascii() and text.isprintable() and text):
            head[row] = 0
    save_file(tensors, path / "model.safetensors")
    shutil.copy(DEMO / "chat_template.json", path)  # which shows tools
    return path


def outcomes(model: str, tests: Sequence[str], words: Sequence[str]) -> dict[str, bool]:
    """Run tests against servers of a model; whether each passed, by its id."""
    found, asked = HOME / f"{model}.outcomes", HOME / f"{model}.ids"
    found.unlink(missing_ok=True)
    asked.write_text("\n".join(tests))
    checkpoint = random_checkpoint(HOME / "random") if model == "random" else DEMO
    told = {
        "VLLM_TESTS_CHECKPOINT": str(checkpoint), "VLLM_TESTS_CONTEXT": str(CONTEXTS[model]),
        "VLLM_TESTS_OUTCOMES": str(found), "PYTHONPATH": str(Path(__file__).parent), "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    (HOME / "pytest.ini").write_text("[pytest]\n")  # else it takes the settings of this project, above
    plugins = ["-p", "no:cacheprovider", "-p", "vllm_plugin", "-p", "tests.entrypoints.conftest", "--noconftest"]
    command = [
        str(HOME / "bin" / "python"),
        "-m",
        "pytest",
        "--quiet",
        "--tb=short",
        "-c",
        os.devnull,
        "--rootdir",
        str(HOME),
        *plugins,
    ]
    subprocess.run([*command, *words, f"@{asked}"], cwd=HOME, env={**os.environ, **told}, stdin=subprocess.DEVNULL)
    passed: dict[str, bool] = {}
    for line in found.read_text().splitlines() if found.exists() else []:
        word, _, test = line.partition("\t")
        passed[test] = passed.get(test, True) and word == "passed"
    return passed


def declared_flags() -> set[str]:
    """Those of `vllm serve`, by its sources: what they add to a parser, and the fields of the front end's arguments."""
    found: set[str] = set()
    for name in OF_FLAGS:
        for node in ast.walk(ast.parse((HOME / name).read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                found |= {name for a in node.args if (name := ast.unparse(a).strip("'")).startswith("-")}
            elif isinstance(node, ast.ClassDef) and node.name.endswith("FrontendArgs"):
                names = (line.target for line in node.body if isinstance(line, ast.AnnAssign))
                found |= {"--" + ast.unparse(name).replace("_", "-") for name in names}
    return found


def main(words: Sequence[str]) -> int:
    """Run all; the exit code. What differs from the list is named, and each flag that nothing is told of."""
    every = listed()
    passed: dict[str, bool] = {}
    for model in CONTEXTS:
        passed |= outcomes(model, [one.test for one in every if one.model == model], words)
    wrong = [f"did not run: {one.test}" for one in every if one.test not in passed]
    wrong += [f"fails: {one.test}" for one in every if not one.reason and passed.get(one.test) is False]
    wrong += [f"passes, and is listed as failing: {one.test}" for one in every if one.reason and passed.get(one.test)]
    flags = declared_flags()
    wrong += [f"no row for the flag: {name}" for name in sorted(flags - BY_NAME.keys() - set(ALIKE))]
    wrong += [f"no such flag: {name}" for name in ALIKE if name not in flags]
    print(
        "\n".join(
            wrong
            + [f"{NAME}: {len(flags)} flags are known"]
            + [f"{NAME}: {sum(passed.values())} of {len(every)} tests pass"]
        )
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["fetch"]:
        try:
            fetch()
        except (IndexFailure, ValueError) as error:
            sys.exit(f"make vllm-tests: {error}")
    else:
        sys.exit(main(sys.argv[1:]))
