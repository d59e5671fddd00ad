"""Two models end to end over the engine: what they say against float32 on the CPU, and how fast they say it.

No HTTP and no worker is part of it: a request begins when it is prepared, and all of a round are given at once.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from configs.serve import Device, Dtype
from configs.settings import EMBEDDED_MODEL
from model.device import free_bytes
from model.engine.engine import Engine
from model.engine.messages import Generate, SamplingParams, Token
from model.selftest.checkpoint import write_random
from model.selftest.host import Host, host_at, load_engine, random_picture, red_circle
from model.selftest.known import IDS, LOGPROBS, stored
from model.selftest.rows import CaseResult
from model.selftest.teller import Teller
from tokenization.placeholders import text_only

SECTION = "models"
AT_ONCE = (1, 4, 16)
# Of a token's log-probability: in bfloat16 twice what the worse of both models shows on a CPU.
TOLERANCES: dict[Dtype, float] = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.4}
_GREEDY = SamplingParams(max_tokens=1, temperature=0.0, seed=0, logprobs=True)
KNOWN_SIDE = 196  # of the picture in the prompt whose log-probabilities are stored: no resize
QUESTION, _ANSWER = "What is in this picture?", "red circle"
_SCORED = 48  # tokens of the answers that are compared
_FREE = "free memory"
_STAGES = ("at the start", "with weights", "behind the profile", "with the cache", "behind a warm-up", "with graphs")
_LOAD_SECONDS, _GIVEN_SECONDS = 1800.0, 900.0  # of a checkpoint of any size, whose reference is computed on the CPU
_KNOWN = "the reference, against transformers in float64"
_PROMPT, _DECODED = "a prompt with a picture", f"{_SCORED} decoded tokens"


Side = tuple[Engine, Host]


def check_models(tell: Teller, device: Device, dtypes: Sequence[Dtype], tokens: int) -> None:
    """tokens: of an answer whose rate is measured."""
    with tempfile.TemporaryDirectory() as folder:
        random = Path(folder) / "random"
        random.mkdir()
        for name, path in (("demo model", EMBEDDED_MODEL), ("random, heads of 128", write_random(random))):
            _check(tell, name, path, Path(folder), device, dtypes, tokens)


def _check(
    tell: Teller, name: str, path: Path, root: Path, device: Device, dtypes: Sequence[Dtype], tokens: int
) -> None:
    with host_at(path, root / "reference") as host:
        tell.begin(f"{name}, load, the reference")
        reference = load_engine(path, root / "reference", "cpu", "float32"), host
        if path == EMBEDDED_MODEL:
            tell.attempt(name, partial(_known, name, reference), _KNOWN, "float32")
        for dtype in dtypes:
            with host_at(path, root / dtype) as own:
                mine = _loaded(tell, name, path, root / dtype, device, dtype), own
                if path == EMBEDDED_MODEL:
                    tell.attempt(name, partial(_answer, name, mine, dtype), QUESTION, dtype)
                tell.attempt(name, partial(_prompts, name, mine, reference, dtype), _PROMPT, dtype)
                tell.attempt(name, partial(_answers, name, mine, reference, dtype), _DECODED, dtype)
                for n in AT_ONCE:
                    tell.attempt(name, partial(_rate, name, mine, n, tokens, dtype), f"{n} at once", dtype)


def check_given(tell: Teller, path: Path, device: Device, tokens: int) -> None:
    """A user's own checkpoint in bfloat16. Its name, and what it says, stay here."""
    name: str = "the given model"
    dtype: Dtype = "bfloat16"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        with host_at(path, root / "reference") as host, host_at(path, root / "own") as own:
            tell.begin(f"{name}, load, the reference", _LOAD_SECONDS)
            reference = load_engine(path, root / "reference", "cpu", "float32"), host
            mine = _loaded(tell, name, path, root / "own", device, dtype), own
            tell.attempt(name, partial(_prompts, name, mine, reference, dtype), _PROMPT, dtype, _GIVEN_SECONDS)
            tell.attempt(name, partial(_answers, name, mine, reference, dtype), _DECODED, dtype, _GIVEN_SECONDS)
            for n in AT_ONCE:
                run = partial(_rate, name, mine, n, tokens, dtype)
                tell.attempt(name, run, f"{n} at once", dtype, _GIVEN_SECONDS)


@contextmanager
def one_request(path: Path, root: Path) -> Iterator[Callable[[], object]]:
    """An NPU's engine, loaded, and what it is asked: a picture, a prompt, and tokens drawn by top-p."""
    sampling = SamplingParams(max_tokens=8, temperature=0.8, top_p=0.9, seed=0)
    with host_at(path, root / "profile") as host:
        engine = load_engine(path, root / "profile", "npu", "bfloat16")
        yield lambda: host.run(engine, [host.prepare("profiled", QUESTION, random_picture(224, 1), sampling)])


def _loaded(tell: Teller, name: str, path: Path, root: Path, device: Device, dtype: Dtype) -> Engine:
    """The engine, and a row of what the driver has free at each stage of its start."""
    tell.begin(f"{name}, load, {dtype}", _LOAD_SECONDS)
    if device == "cpu":
        tell.skip(_FREE, "not here: a CPU's memory is the host's")
        return load_engine(path, root, device, dtype)
    free: list[int] = []

    def look() -> None:
        free.append(free_bytes(torch.device(device)))

    look()
    engine = load_engine(path, root, device, dtype, look)
    tell.send(stages(name, dtype, free))
    return engine


def stages(name: str, dtype: Dtype, free: Sequence[int]) -> CaseResult:
    """free: bytes at the start, behind each tensor of the weights, and behind each stage that follows."""
    chosen = (free[0], *free[-len(_STAGES) + 1 :])
    figures = {f"GiB {stage}": nbytes / 2**30 for stage, nbytes in zip(_STAGES, chosen, strict=True)}
    return CaseResult(section=SECTION, name=_FREE, case=name, dtype=dtype, verdict="told", figures=figures)


def _answer(name: str, mine: Side, dtype: Dtype) -> CaseResult:
    """What the demo model was trained to say."""
    engine, host = mine
    sampling = SamplingParams(max_tokens=16, temperature=0.0, seed=0, stop_token_ids=host.stop_ids)
    host.run(engine, [host.prepare(f"answer-{dtype}", QUESTION, red_circle(), sampling)])
    said = host.text(f"answer-{dtype}")
    return CaseResult(
        section=SECTION, name=name, case=QUESTION, dtype=dtype, verdict="pass" if said == _ANSWER else "fail",
        note=f"{said!r}" if said == _ANSWER else f"{said!r} instead of {_ANSWER!r}",
    )  # fmt: skip


def _prompts(name: str, mine: Side, reference: Side, dtype: Dtype) -> CaseResult:
    """The log-probabilities of a prompt's own tokens: encoder, prefill and head, without a sampled token."""
    found, wanted = (_scored(side, f"prompt-{dtype}") for side in (mine, reference))
    return _compared(name, _PROMPT, dtype, found, wanted)


def _known(name: str, reference: Side) -> CaseResult:
    """What all else is compared with, against what others computed in float64."""
    arrays = stored()
    pairs = zip(arrays[IDS][1:].tolist(), arrays[LOGPROBS].tolist(), strict=True)
    wanted = [Token(id=one, logprob=logprob) for one, logprob in pairs]
    return _compared(name, _KNOWN, "float32", _scored(reference, "known", KNOWN_SIDE), wanted)


def _scored(side: Side, request: str, pixels: int = 224) -> list[Token]:
    engine, host = side
    prepared = host.prepare(request, QUESTION, random_picture(pixels, 1), _GREEDY).prepared
    host.run(engine, [Generate(prepared=prepared, sampling=_GREEDY, scores_prompt=True)])
    return host.scores[request]


def _answers(name: str, mine: Side, reference: Side, dtype: Dtype) -> CaseResult:
    """Tokens as the device decodes them, one by one; the reference reads them as a prompt."""
    engine, host = mine
    request = f"decoded-{dtype}"
    sampling = SamplingParams(max_tokens=_SCORED, temperature=0.0, seed=0, logprobs=True)
    generate = host.prepare(request, "Tell me of ships that carry pixels over a river.", None, sampling)
    host.run(engine, [generate])
    sampled = host.tokens[request]
    ids = [*generate.prepared.input_ids.tolist(), *(token.id for token in sampled)]
    reference_engine, reference_host = reference
    whole = Generate(prepared=text_only(request, ids), sampling=_GREEDY, scores_prompt=True)
    reference_host.run(reference_engine, [whole])
    return _compared(name, _DECODED, dtype, sampled, reference_host.scores[request][-len(sampled) :])


def _compared(name: str, case: str, dtype: Dtype, found: Sequence[Token], wanted: Sequence[Token]) -> CaseResult:
    pairs = [
        (mine.logprob, theirs.logprob)
        for mine, theirs in zip(found, wanted, strict=True)
        if mine.logprob is not None and theirs.logprob is not None
    ]
    error = max(abs(mine - theirs) for mine, theirs in pairs)
    tolerance = TOLERANCES[dtype]
    same = [mine.id for mine in found] == [theirs.id for theirs in wanted]
    return CaseResult(
        section=SECTION, name=name, case=case, dtype=dtype, error=error, tolerance=tolerance,
        verdict="pass" if same and error <= tolerance else "fail",
        figures={"on average": statistics.fmean(abs(mine - theirs) for mine, theirs in pairs)},
        note=f"log-probabilities of {len(pairs)} tokens" if same else "other tokens than were sent",
    )  # fmt: skip


def _rate(name: str, mine: Side, n: int, tokens: int, dtype: Dtype) -> CaseResult:
    """Requests with a picture each, answers of equal length."""
    engine, host = mine
    sampling = SamplingParams(max_tokens=tokens, temperature=0.0, seed=0)
    names = [f"rate-{dtype}-{n}-{i}" for i in range(n)]
    generates = [host.prepare(one, QUESTION, random_picture(224, i), sampling) for i, one in enumerate(names)]
    started = time.perf_counter()
    steps = host.run(engine, generates)
    seconds = time.perf_counter() - started
    firsts = [(host.first[one] - started) * 1e3 for one in names]
    decodes = [taken for taken, decoded in steps if decoded]
    counts = {len(host.tokens[one]) for one in names}
    return CaseResult(
        section=SECTION, name=name, case=f"{n} at once", dtype=dtype, verdict="pass" if counts == {tokens} else "fail",
        microseconds=statistics.median(decodes) * 1e6 if decodes else None,
        figures={
            "tokens/s": n * tokens / seconds, "TTFT ms": statistics.median(firsts), "TTFT ms, last": max(firsts),
        },
        note=f"{'a picture each, ' if host.sees else ''}{tokens} tokens each",
    )  # fmt: skip
