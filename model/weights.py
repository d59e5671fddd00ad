"""Reads the tensors of a checkpoint one by one, as a network asks for them."""

import logging
import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from configs.checkpoint import Checkpoint, CheckpointError
from configs.quantised import refuse_quantised_tensor
from configs.weight_files import weight_files
from model.weight_tensors import DTYPES, WHOLE, Cut, PickledTensor, StoredTensor, label_of, read_header, read_pickle

log = logging.getLogger("pixelferry")

# Tables that old releases saved and every network makes itself. transformers skips the first two patterns for all
# (modeling_utils._adjust_missing_and_unexpected_keys), classes on the hub the third; the last it does not expect.
_LEFT_OVER = re.compile(
    r"rotary(_pos)?_emb\.(original_)?inv_freq$|(^|\.)position_ids$|\.attn\.masked_bias$"
    r"|audio_tower\.positional_embedding\.positional_embedding$"
)
_COMPARED_BYTES = 1 << 24  # of one side of a comparison at a time
_SHOWN = 6


class Weights:
    """A checkpoint's tensors under the names that its family's `build` uses: of safetensors, else of torch's own files.

    `take` reads one tensor, so memory stays within about one tensor of what the caller holds. Safetensors are not
    mapped: a file that is cut short is an error and not a signal.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        renames: Mapping[str, str],
        dtype: torch.dtype,
        device: torch.device | None = None,
        skips: tuple[str, ...] = (),
        on_read: Callable[[int, int], None] | None = None,
    ) -> None:
        """Read the headers. Raises CheckpointError for a missing, broken or ambiguous file.

        renames: prefix on disk -> internal prefix, longest first; skips: prefixes on disk to ignore; device None: CPU;
        on_read: told (bytes done with, bytes in all) after each tensor.
        """
        self._where = checkpoint.path
        self._dtype = dtype
        self._device = device or torch.device("cpu")
        self._on_read = on_read
        self._passed_bytes = 0  # of the tensors that were taken, whatever of them was read
        self.read_bytes = 0
        self.nbytes: dict[str, int] = {}  # by name, of what a network keeps: float32 it rounds once it has scaled
        self._entries: dict[str, StoredTensor | PickledTensor] = {}
        files, warning = weight_files(checkpoint)
        if warning:
            self.warn(warning)
        for path in files:
            for entry in read_pickle(path) if path.suffix == ".bin" else read_header(path):
                if entry.disk_name.startswith(skips) or _LEFT_OVER.search(entry.disk_name):
                    continue
                refuse_quantised_tensor(path.name, entry.disk_name)
                name = _internal_name(entry.disk_name, renames)
                if name in self._entries:
                    raise CheckpointError(
                        f"{path.name}: tensor {entry.disk_name!r} and {self._entries[name].disk_name!r} "
                        f"of {self._entries[name].path.name} both mean {name!r}"
                    )
                self._entries[name] = entry
        self._total_bytes = sum(entry.nbytes for entry in self._entries.values())

    def has(self, name: str) -> bool:
        return name in self._entries

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor that nobody took yet; None where there is none."""
        return self._entries[name].shape if name in self._entries else None

    def take(
        self, name: str, shape: tuple[int, ...] | None = None, dtype: torch.dtype | None = None, cut: Cut = WHOLE
    ) -> Tensor:
        """Read one tensor, once. Raises CheckpointError when it is missing, misshapen or not of floats.

        shape: of the whole tensor; cut: what of it is read and given, the rest counts as taken, too.
        """
        entry = self._entries.pop(name, None)
        if entry is None:
            raise CheckpointError(f"{self._where}: tensor {name!r} is missing")
        label = label_of(entry)
        if shape is not None and entry.shape != shape:
            raise CheckpointError(f"{label} has shape {list(entry.shape)}, the configuration asks for {list(shape)}")
        if entry.dtype not in DTYPES:
            raise CheckpointError(f"{label} is stored as {entry.dtype} (supported: {', '.join(DTYPES)})")
        if self._device.type == "meta":  # only shapes are wanted
            tensor = torch.empty(cut.shape(entry.shape), dtype=dtype or self._dtype, device=self._device)
        else:
            read = entry.read(label, cut)
            self.read_bytes += read.nbytes
            tensor = read.to(self._device, dtype or self._dtype)
            self._passed_bytes += entry.nbytes
            if self._on_read is not None:
                self._on_read(self._passed_bytes, self._total_bytes)
        self.count(name, tensor)
        return tensor

    def count(self, name: str, tensor: Tensor) -> None:
        """Of what is taken as `name` a network keeps this; also where it keeps a copy beside it."""
        self.nbytes[name] = self.nbytes.get(name, 0) + tensor.numel() * self._dtype.itemsize

    @property
    def taken_bytes(self) -> int:
        """Of all tensors handed out, as a network keeps them."""
        return sum(self.nbytes.values())

    def check_blocks(self, prefix: str, n: int) -> None:
        """Raises CheckpointError where fewer than `n` blocks lie under `prefix`N: before anything is made of the first.

        What lies there beyond them is for `finish`.
        """
        held = {name[len(prefix) :].partition(".")[0] for name in self._entries if name.startswith(prefix)}
        if n > len(held):
            raise CheckpointError(f"config.json asks for {n} layers {prefix}N, and the weights hold {len(held)}")

    def equal(self, one: str, other: str, rows: range | None = None) -> bool:
        """Whether two matrices on disk hold the same numbers in the dtype asked for; both may still be taken.

        Read in pieces up to the first difference, also for the meta device, where shapes alone cannot tell. rows: that
        matter; None: all.
        """
        first, second = self._entries[one], self._entries[other]
        if first.shape != second.shape or not {first.dtype, second.dtype} <= DTYPES.keys():
            return False
        rows = range(first.shape[0]) if rows is None else rows
        step = max(1, _COMPARED_BYTES * first.shape[0] // max(1, first.nbytes))
        cuts = [Cut(rows=(rows[i : i + step],)) for i in range(0, len(rows), step)]
        return all(
            torch.equal(*(entry.read(label_of(entry), cut).to(self._dtype) for entry in (first, second)))
            for cut in cuts
        )

    def warn(self, message: str) -> None:
        """Log it, but not on the meta device: there a network is built for the second time."""
        if self._device.type != "meta":
            log.warning(message)

    def drop(self, name: str) -> None:
        """Accept that `name` is on disk (or not) without using it."""
        self._entries.pop(name, None)

    def drop_under(self, prefix: str) -> None:
        """Drop every name that begins with this prefix."""
        for name in [name for name in self._entries if name.startswith(prefix)]:
            del self._entries[name]

    def finish(self) -> None:
        """Raises CheckpointError, naming every tensor that was not taken or dropped."""
        left = sorted(f"{entry.disk_name} ({entry.path.name})" for entry in self._entries.values())
        if left:
            more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
            shown = ", ".join(left[:_SHOWN]) + more
            raise CheckpointError(f"{self._where}: tensors that this model does not use: {shown}")


def _internal_name(name: str, renames: Mapping[str, str]) -> str:
    for prefix, new in renames.items():
        if name.startswith(prefix):
            return new + name[len(prefix) :]
    return name
