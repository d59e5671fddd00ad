"""Process main of the engine: messages in, steps, messages out, and a periodic pulse."""

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch

from configs.checkpoint import Checkpoint
from model.device import check_cache, resolve
from model.engine.engine import Engine
from model.engine.messages import (
    Abort,
    EnginePulse,
    EngineReady,
    Generate,
    SamplingParams,
    StartEngine,
    ToEngine,
)
from model.engine.profile import Profile, memory_rows, profile_by_shapes
from model.load_progress import LoadProgress
from model.ops.load import load_ops
from model.registry import family_of
from model.weights import Weights
from shm import Channel, ChannelClosed, ChannelError
from tokenization.messages import Prepared

PULSE_SECONDS = 0.5
_WARM_UP = "warm-up"  # no server gives this id
FIT_ROUNDS, FIT_STEPS = 4, 9
FIT_SLACK = 1.1  # one thread may take so much longer: it leaves a core to the others
SLOW_SECONDS = 0.02

Inbox = queue.SimpleQueue[ToEngine | ChannelClosed | ChannelError]


def run(channel: Channel[ToEngine], start: StartEngine) -> None:
    """Load what `start` names, send EngineReady, serve until the channel ends: raises ChannelClosed then.

    Also raised: CheckpointError, DeviceError, BlockError, ChannelError, and what the forward pass raises.
    """
    engine, ready = load(start)
    channel.send(ready)
    inbox = Inbox()
    threading.Thread(target=_read, args=(channel, inbox), name="engine-reader", daemon=True).start()
    threading.Thread(target=_pulse, args=(channel, engine), name="engine-pulse", daemon=True).start()
    serve(engine, inbox, channel.send)


def load(start: StartEngine) -> tuple[Engine, EngineReady]:
    """Weights, cache and a warm-up step: an engine that is ready to serve, and the message that says so."""
    config = start.engine
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    checkpoint = Checkpoint(Path(start.checkpoint))
    family = family_of(checkpoint)
    device, dtype = resolve(config.device, config.dtype, family.config(checkpoint), checkpoint.config)
    max_model_len = min(start.max_model_len, config.max_model_len or start.max_model_len)
    check_cache(device, config.block_size, max_model_len)
    ops = load_ops(device, dtype)
    weights = Weights(checkpoint, family.renames, dtype, device, family.skips, LoadProgress())
    model = family.build(checkpoint, weights, ops)
    engine = Engine(model=model, config=config, root=Path(start.shm_root), max_model_len=max_model_len)
    profile = engine.profile(start.largest) if device.type != "cpu" else _computed(checkpoint, dtype, engine, start)
    warm_up(engine)
    threads = fit_threads(engine, config.threads) if config.fits_threads and device.type == "cpu" else ""
    ready = EngineReady(
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        vocab_size=model.vocab_size,
        kv_blocks=engine.size.n_blocks,
        block_size=engine.size.block_size,
        memory=memory_rows(weights.taken_bytes, engine.size, config, profile),
        max_model_len=engine.size.max_model_len,
        media_ids=tuple(model.banned_ids),
        max_media_tokens=engine.max_media_tokens,
        threads=threads,
    )
    return engine, ready


def _computed(checkpoint: Checkpoint, dtype: torch.dtype, engine: Engine, start: StartEngine) -> Profile:
    """The profile of the same model on the meta device: the largest item takes a CPU a minute."""
    ops = load_ops(torch.device("meta"), dtype)
    family = family_of(checkpoint)
    weights = Weights(checkpoint, family.renames, ops.dtype, ops.device, family.skips)
    model = family.build(checkpoint, weights, ops)
    return profile_by_shapes(model, engine.size, start.engine, start.largest)


def fit_threads(engine: Engine, most: int | None) -> str:
    """Compute with one thread where `most` of them make no step of decode faster; what was found, in words.

    In a small network threads wait for each other longer than they compute, and more so beside other processes. A step
    of SLOW_SECONDS or more is worth its threads and is not tried with one. The fastest of several steps counts: what
    else runs on the machine now does not.
    """
    if most is None or most == 1:
        return ""
    tried: dict[int, list[float]] = {most: [], 1: []}
    for _ in range(FIT_ROUNDS):
        for n, seconds in tried.items():
            torch.set_num_threads(n)
            seconds += warm_up(engine, FIT_STEPS)[1:]
            if not seconds or min(seconds) > SLOW_SECONDS:
                torch.set_num_threads(most)
                return f"{most}: a step takes {min(seconds) * 1e3:.3g} ms" if seconds else ""
    many, one = min(tried[most]) * 1e3, min(tried[1]) * 1e3
    chosen = 1 if one <= many * FIT_SLACK else most
    torch.set_num_threads(chosen)
    return f"{chosen}: a step of one sequence takes {one:.2g} ms with one and {many:.2g} ms with {most}"


def warm_up(engine: Engine, n_tokens: int = 2) -> list[float]:
    """One prefill, and decodes; seconds of each step."""
    n = min(8, engine.size.max_model_len - n_tokens)
    if n < 1:
        return []
    prepared = Prepared(
        request_id=_WARM_UP, input_ids=np.zeros(n, np.int64), media=(), position_delta=0, seconds={},
        positions=np.broadcast_to(np.arange(n, dtype=np.int32), (3, n)),
    )  # fmt: skip
    generate = Generate(prepared=prepared, sampling=SamplingParams(max_tokens=n_tokens, temperature=0.0, seed=0))
    refusal = engine.submit(generate)
    if refusal is not None:
        raise RuntimeError(f"the warm-up request was refused: {refusal.message}")
    taken = []
    while not engine.idle:
        start = time.perf_counter()
        engine.step()
        taken.append(time.perf_counter() - start)
    return taken


def serve(engine: Engine, inbox: Inbox, send: Callable[[object], None]) -> NoReturn:
    """Take messages, run a step, send its messages, for ever. When idle: check the books and wait."""
    while True:
        if engine.idle:
            engine.check_integrity()
            _take(inbox.get(), engine, send)
        while not inbox.empty():  # this thread alone takes from it
            _take(inbox.get(), engine, send)
        for message in engine.step():
            send(message)


def _take(message: ToEngine | ChannelClosed | ChannelError, engine: Engine, send: Callable[[object], None]) -> None:
    if isinstance(message, Generate):
        answer = engine.submit(message)
    elif isinstance(message, Abort):
        answer = engine.abort(message.request_id, message.index)
    elif isinstance(message, Exception):
        raise message
    else:
        raise ValueError(f"{type(message).__name__} is a first message, and came a second time")
    if answer is not None:
        send(answer)


def _read(channel: Channel[ToEngine], inbox: Inbox) -> None:
    """Thread: messages into the inbox, and the error that ends the channel."""
    try:
        while True:
            message = channel.recv(None)
            if message is not None:
                inbox.put(message)
    except (ChannelClosed, ChannelError) as error:
        inbox.put(error)


def _pulse(channel: Channel[ToEngine], engine: Engine) -> None:
    """Thread: age and size of the running step every PULSE_SECONDS, so that a hung one is told from a long one."""
    while True:
        time.sleep(PULSE_SECONDS)
        try:
            channel.send(pulse_of(engine, time.monotonic()))
        except ChannelClosed:
            return


def pulse_of(engine: Engine, now: float) -> EnginePulse:
    """now: time.monotonic()."""
    step = engine.progress
    if step is None:
        return EnginePulse(step_seconds=0.0, step_tokens=0, step_patches=0)
    return EnginePulse(
        step_seconds=max(now - step.started, 0.0), step_tokens=step.tokens, step_patches=step.patches,
        step_pairs=step.pairs,
    )  # fmt: skip
