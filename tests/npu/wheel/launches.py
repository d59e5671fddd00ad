"""What steps of an engine launch, copy and wait for, as the stub counts it.

`python -m tests.npu.wheel.launches`, in the environment of a pair, writes what it counts into launches.json again.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import torch

from model.engine.engine import Engine
from model.engine.messages import SamplingParams
from model.net.multimodal import MultimodalLM
from tests.model.engine.engine_harness import EngineHarness, Parts, engine_at, engine_harness_at, picture
from tests.npu.aten import dtypes_given
from tests.npu.stub.counts import counted, launches
from tests.npu.wheel.families import FAMILIES, requests_for
from tests.npu.wheel.twins import BLOCK, Said, load_on, open_npu, run_on
from tests.tiny.qwen2_5_vl import write_qwen2_5_vl
from tests.tiny.qwen2_vl import write_qwen2_vl
from tokenization.chat.grammar import CompiledGrammar

CHUNK = 13  # tokens of a step
GOLDEN = Path(__file__).with_name("launches.json")
GREEDY = SamplingParams(max_tokens=8, temperature=0.0, seed=0)
TOP_P = msgspec.structs.replace(GREEDY, temperature=0.8, top_p=0.9, top_k=50)
RULES = msgspec.structs.replace(
    TOP_P, min_p=0.1, repetition_penalty=1.1, frequency_penalty=0.1, presence_penalty=0.1, logprobs=True,
    top_logprobs=3, logit_bias=((3, 1.0),), bad_words=((5, 6), (8,)), min_tokens=3, stop_token_ids=(7,),
    allowed_token_ids=tuple(range(9, 200)),
)  # fmt: skip
FORM = CompiledGrammar(
    source=json.dumps({"grammars": [{"lark_grammar": '%llguidance {"no_forcing": true}\nstart: /[a-z]{400}/'}]})
)
TEXT: Parts = ["a short question"]
PICTURE: Parts = ["look: ", picture(140, 112, 5), "and say what it is"]


def pair() -> str:
    """The name of the pair that this process runs on."""
    return f"torch_npu-{version('torch_npu')}"


def golden() -> dict[str, Any]:
    """Of this pair, what `recorded` makes of the counts."""
    found: dict[str, Any] = json.loads(GOLDEN.read_text())[pair()]
    return found


def recorded(steps: Mapping[str, Counter[str]], families: Mapping[str, Counter[str]]) -> dict[str, Any]:
    """As launches.json holds it: how often each kernel is launched in a step, and which ones a family launches."""
    return {
        "steps": {name: dict(launches(found)) for name, found in steps.items()},
        "families": {name: sorted(launches(found)) for name, found in families.items()},
    }


def count_steps(npu: torch.device, root: Path) -> dict[str, Counter[str]]:
    """One step of each kind: everything that the stub counted."""
    windows = write_qwen2_5_vl(root / "windows")
    path = write_qwen2_vl(root / "checkpoint")
    model = load_on(path, npu, torch.bfloat16)
    found = {
        "prefill": _first_step(model, path, root, TEXT),
        "prefill, picture": _first_step(model, path, root, PICTURE),
        "prefill, picture in windows": _first_step(load_on(windows, npu, torch.bfloat16), windows, root, PICTURE),
    }
    for name, sampling in (("greedy", GREEDY), ("top-p", TOP_P), ("rules", RULES)):
        found[f"decode, {name}"] = _decode(model, path, root, sampling)
    found["decode, forms"] = _decode(model, path, root, TOP_P, forms="abcd")
    found["decode, some in a form"] = _decode(model, path, root, TOP_P, forms="bd")
    parallel = msgspec.structs.replace(TOP_P, n=2)
    found["prefill of two answers"] = _first_step(model, path, root, TEXT, parallel)
    return found


def count_layer(npu: torch.device, root: Path, *, hidden: int) -> Counter[str]:
    """Launches of one decoder layer in a decode step, where four heads make up `hidden`."""
    found = []
    for layers in (2, 3):
        path = write_qwen2_vl(root / str(layers), layers=layers, hidden=hidden)
        found.append(launches(_decode(load_on(path, npu, torch.bfloat16), path, root, GREEDY)))
    return found[1] - found[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfFamily:
    """All requests of a family, from the first step to the last."""

    path: Path  # of its checkpoint
    said: Said
    counts: Counter[str]  # everything that the stub counted


def run_family(npu: torch.device, root: Path, name: str) -> OfFamily:
    """A batch of decodes and of chunks, some of which end inside a medium; each step is launched."""
    family = FAMILIES[name]
    path = family.write(root / name)
    model = load_on(path, npu, torch.bfloat16)
    with counted() as counts:
        said = run_on(model, path, root / f"{name}-shm", requests_for(family), tokens=CHUNK)
    return OfFamily(path=path, said=said, counts=counts)


def dtypes_of_forms(npu: torch.device, root: Path) -> tuple[Counter[str], list[tuple[str, frozenset[torch.dtype]]]]:
    """Of answers of which some are held to a form: what the stub counted, and dtypes of what works on bits."""
    path = write_qwen2_vl(root / "checkpoint")
    model = load_on(path, npu, torch.bfloat16)
    with counted() as counts, dtypes_given("aten::bitwise_and", "aten::__and__", "aten::eq") as found:
        _decode(model, path, root, TOP_P, forms="bd")
    return counts, found


def _first_step(
    model: MultimodalLM, path: Path, root: Path, parts: Parts, sampling: SamplingParams = GREEDY
) -> Counter[str]:
    with _engine(model, path, root) as (harness, engine):
        harness.submit(engine, harness.prepare("a", parts, sampling))
        with counted() as found:
            harness.book(engine.step())
        harness.run(engine)
    return found


def _decode(
    model: MultimodalLM, path: Path, root: Path, sampling: SamplingParams, forms: Collection[str] = ()
) -> Counter[str]:
    """The third step of four requests that began together. forms: those that are held to one."""
    with _engine(model, path, root) as (harness, engine):
        for name in "abcd":
            request = harness.prepare(name, TEXT, sampling)
            harness.submit(engine, msgspec.structs.replace(request, grammar=FORM if name in forms else None))
        for _ in range(2):
            harness.book(engine.step())
        with counted() as found:
            harness.book(engine.step())
        harness.run(engine)
    return found


@contextmanager
def _engine(model: MultimodalLM, path: Path, root: Path) -> Iterator[tuple[EngineHarness, Engine]]:
    with engine_harness_at(path, root / "shm") as harness:
        yield harness, engine_at(model, harness.root, block_size=BLOCK, tokens=512, checkpoint=path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        kept = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
        npu, root = open_npu(), Path(folder)
        families = {name: run_family(npu, root, name).counts for name in FAMILIES}
        kept[pair()] = recorded(count_steps(npu, root), families)
    GOLDEN.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
