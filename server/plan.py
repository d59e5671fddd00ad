"""`pixelferry plan`: what a model needs of so many devices, before they are there; it loads no weights.

All of it follows the rules of a start. What a start measures on its devices is an assumption here, and is called so.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from configs.checkpoint import Checkpoint, CheckpointError
from configs.logs import LogConfig
from configs.serve import GIB, EngineConfig, ServeConfig
from configs.setting import Setting, SettingsError
from configs.settings import load_config
from model.registry import family_of
from server.http.health import DownloadProgress
from server.hub.client import HubError
from server.hub.fetch import with_checkpoint
from server.logs.setup import complain
from server.report import size, table
from server.requests.sampling import model_length

if TYPE_CHECKING:  # it loads torch
    from model.engine.ranks.capacity import Capacity, PlannedDevice, RankCapacity

FITS, FITS_NOWHERE, USAGE = 0, 1, 2
RANKS = (1, 2, 4, 8)  # where no setting asks for several
MEMORY = Setting("memory of a device, of a CPU for a process", 0.001, 1 << 20, "GiB", kind="float", default=64)
WORKING = Setting(
    "of that for activations, encoders and graphs, which a start measures; at least what sampling takes is counted",
    0, 1 << 24, "MiB", kind="float", default=0,
)  # fmt: skip
_OTHERS = (
    "every other flag, variable and profile is that of `pixelferry serve`; of these --model, --tensor-parallel, "
    "--device (auto: npu), --dtype, --max-model-len, --max-seqs, --max-batched-tokens, --block-size, --embedding-mib, "
    "--kv-cache-mib, --kv-cache-share and --no-graphs count here"
)
HEAD = ("N", "weights", "decoder", "the rest", "embeddings", "left", "KV a token", "KV tokens", "requests")


def plan(argv: Sequence[str]) -> int:
    """Print it; the exit code: 1 where no number of devices serves the model, 2 for a setting that cannot be taken."""
    own, rest = _parser().parse_known_args(argv)
    from model.device import DeviceError
    from model.engine.ranks.capacity import PlannedDevice, capacity

    try:
        config = load_config(rest)
        kind = "npu" if config.engine.device == "auto" else config.engine.device
        device = PlannedDevice(
            kind=kind,
            nbytes=int(MEMORY.parse(own.device_memory_gib, "--device-memory-gib") * GIB),
            working=int(WORKING.parse(own.activations_mib, "--activations-mib")),
        )
        if kind == "cpu" and device.working:
            raise SettingsError("--activations-mib: on a CPU nothing is measured, and half of what is free is left")
        config = with_checkpoint(config, DownloadProgress(), weights=False)
        checkpoint = Checkpoint(config.model.path, sizes_alone=True)
        length = _length(checkpoint, config.engine)
        found = capacity(checkpoint, config.engine, device, length, _ranks(config.engine, rest))
    except (SettingsError, DeviceError) as error:
        complain(error, LogConfig())
        return USAGE
    except (CheckpointError, HubError) as error:
        complain(error, LogConfig())
        return FITS_NOWHERE
    print(json.dumps(as_object(config, found), indent=2) if own.json else as_text(config, found))
    return FITS if found.serves else FITS_NOWHERE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pixelferry plan", allow_abbrev=False, epilog=_OTHERS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    for flag, setting in (("--device-memory-gib", MEMORY), ("--activations-mib", WORKING)):
        parser.add_argument(flag, metavar=setting.unit, default=setting.shown_default, help=setting.help_text())
    return parser


def _ranks(config: EngineConfig, argv: Sequence[str]) -> tuple[int, ...]:
    asked = config.tensor_parallel > 1 or any(word.partition("=")[0] == "--tensor-parallel" for word in argv)
    return (config.tensor_parallel,) if asked else RANKS


def _length(checkpoint: Checkpoint, config: EngineConfig) -> int:
    """Raises SettingsError for more tokens than the model was made for."""
    own = family_of(checkpoint).config(checkpoint)
    most = model_length(own, None)
    try:
        return most if config.max_model_len is None else model_length(own, config.max_model_len)
    except CheckpointError as error:
        raise SettingsError(str(error)) from None


def as_object(config: ServeConfig, found: "Capacity") -> dict[str, Any]:
    """For programs; what is not known is null."""
    return {
        "model": str(config.model.wanted or config.model.path),
        "family": found.family,
        "device": found.device.kind,
        "dtype": _name(found),
        "device_memory_bytes": found.device.nbytes,
        "weights_by": "architecture" if found.no_headers else "headers",
        "no_headers": found.no_headers or None,
        "activation_bytes": None if found.device.kind == "cpu" else found.device.working,
        "activation_rule": _rule(found.device),
        "block_size": found.block_size,
        "max_model_len": found.max_model_len,
        "max_seqs": config.engine.max_seqs,
        "encoder_parallel": config.engine.encoder_parallel,
        "fits": found.serves,
        "tensor_parallel": [_of_ranks(one, found) for one in found.ranks],
    }


def _of_ranks(one: "RankCapacity", found: "Capacity") -> dict[str, Any]:
    weights, room, taken = one.weights, one.room, one.size
    return {
        "n": one.n,
        "fits": not one.refusal,
        "why_not": one.refusal or None,
        "weight_bytes": weights and weights.nbytes,
        "decoder_bytes": weights and weights.decoder_bytes,
        "kv_heads": weights and weights.kv.kv_heads,
        "kv_bytes_per_token": weights and weights.kv.bytes_per_token(found.dtype.itemsize),
        "embedding_bytes": one.embedding_bytes if weights else None,
        "left_bytes": one.left if weights else None,
        "kv_tokens": room and room.usable * room.block_size,
        "requests": one.requests if room else None,
        "serve_kv_tokens": taken and taken.usable * taken.block_size,
        "serve_kv_bound": taken and taken.bound,
    }


def as_text(config: ServeConfig, found: "Capacity") -> str:
    """For people: what holds for all numbers of ranks, a line for each, and why some do not serve the model."""
    why = found.no_headers
    head = table(
        f"plan for {config.model.wanted or config.model.path}",
        [
            ("served as", f"{found.family}, {_name(found)}"),
            ("devices", f"{found.device.kind}, {size(found.device.nbytes)} for each rank (--device-memory-gib)"),
            ("weights", f"counted from the architecture: {why}" if why else "by the headers of their files"),
            ("towers, projectors", "whole on every rank: --encoder-parallel shares out media, and no weights"),
            ("activations, graphs", _rule(found.device)),
            ("KV cache", f"blocks of {found.block_size} tokens"),
            ("--max-model-len", f"{found.max_model_len} tokens of one request"),
        ],
    )
    return "\n".join([head, "", *_columns(found), "", *(f"N = {one.n} {_verdict(one)}" for one in found.ranks)])


def _columns(found: "Capacity") -> Iterator[str]:
    rows = [HEAD, *(_cells(one, found) for one in found.ranks)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))


def _cells(one: "RankCapacity", found: "Capacity") -> tuple[str, ...]:
    if one.weights is None:
        return str(one.n), *["-"] * (len(HEAD) - 1)
    whole, decoder = one.weights.nbytes, one.weights.decoder_bytes
    known = size(whole), size(decoder), size(whole - decoder), size(one.embedding_bytes), size(one.left)
    token = size(one.weights.kv.bytes_per_token(found.dtype.itemsize))
    if one.room is None:
        return str(one.n), *known, token, "-", "-"
    return str(one.n), *known, token, f"{one.room.usable * one.room.block_size:,}", str(one.requests)


def _verdict(one: "RankCapacity") -> str:
    if one.refusal or one.size is None:
        return f"does not fit: {one.refusal}"
    # Only a size by name can be more, on a CPU.
    more = ": more than is left, and on a CPU no start looks at that" if one.size.nbytes > one.left else ""
    return f"fits: serve has {one.size.usable * one.size.block_size:,} tokens of KV cache ({one.size.bound}){more}"


def _rule(device: "PlannedDevice") -> str:
    if device.kind == "cpu":
        return "never measured on a CPU: what --kv-cache-share leaves is for them, and for embeddings"
    return (
        f"{size(device.working)} assumed (--activations-mib, at least what sampling takes); a start measures instead "
        "what a full step, the largest media and the graphs of decodes take"
    )


def _name(found: "Capacity") -> str:
    return str(found.dtype).removeprefix("torch.")
