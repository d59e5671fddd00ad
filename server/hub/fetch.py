"""Fetches the model that --model names on a hub: what is served of it, and nothing before config.json was accepted.

The files are data. Nothing of them is run, and the names that are fetched are plain names of files.
"""

import logging
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from configs.checkpoint import Checkpoint, CheckpointError
from configs.serve import ServeConfig
from configs.setting import Hub, HubModel
from configs.weight_files import first_file, shards
from model.registry import family_of
from server.http.health import DownloadProgress
from server.hub.client import HubClient, HubError
from server.hub.huggingface import HuggingFace
from server.hub.modelscope import ModelScope
from server.report import size

log = logging.getLogger("pixelferry")

CLIENTS: dict[Hub, Callable[[HubModel, DownloadProgress], HubClient]] = {
    "huggingface": HuggingFace,
    "modelscope": ModelScope,
}
# Of the repository's own directory, so no onnx/ or original/: settings, tokenizers and templates.
_SMALL = re.compile(r"\w[\w.-]*\.(json|jinja|tiktoken)|(merges|vocab)\.txt", re.ASCII)


def with_checkpoint(config: ServeConfig, progress: DownloadProgress, *, weights: bool = True) -> ServeConfig:
    """The same with a directory in the place of a name on a hub, and its exact revision.

    weights: whether they are fetched, too. Raises HubError, and CheckpointError for a model that this version does not
    serve, before its weights are fetched.
    """
    wanted = config.model.wanted
    if wanted is None:
        return config
    try:
        client = CLIENTS[config.model.hub](wanted, progress)
        path = fetch(client, wanted.name, progress) if weights else fetch_settings(client, wanted.name, progress)[0]
    except CheckpointError as error:
        raise CheckpointError(f"{wanted}: {error}") from None
    found = HubModel(wanted.name, client.revision)
    return msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, path=path, wanted=found))


def fetch(client: HubClient, name: str, progress: DownloadProgress) -> Path:
    """The directory with everything that is served of the model. `progress` is told what is to come."""
    folder, sizes = fetch_settings(client, name, progress)
    if sizes is None:
        held = {path.name: 0 for path in folder.iterdir()}
        log.info("%s is taken from %s as it lies there: the hub is not asked", name, folder)
        weight_names(Checkpoint(folder), held, str(folder))
        return folder
    small = _small(sizes)
    weights = weight_names(Checkpoint(folder), sizes, f"{name} on {client.where}")
    progress.add(total=_need_room(folder, {file: sizes[file] for file in weights}))
    total = sum(sizes[file] for file in (*small, *weights))
    log.info("%s at %s: %d files, %s, in %s", name, client.revision, len(small) + len(weights), size(total), folder)
    return client.fetch(weights)


def fetch_settings(
    client: HubClient, name: str, progress: DownloadProgress
) -> tuple[Path, Mapping[str, int] | None]:  # fmt: skip
    """The directory with everything but the weights, and the bytes of each file there, as of `HubClient.sizes`."""
    log.info("looking for %s on %s", name, client.where)
    folder = client.fetch(["config.json"])
    family_of(Checkpoint(folder))
    sizes = client.sizes()
    if sizes is not None:
        small = _small(sizes)
        progress.add(total=_need_room(folder, {file: sizes[file] for file in small}))
        client.fetch(small)
        family_of(Checkpoint(folder))  # again: other files may say that the weights are quantised
    return folder, sizes


def _small(sizes: Mapping[str, int]) -> list[str]:
    return sorted(file for file in sizes if _SMALL.fullmatch(file))


def weight_names(checkpoint: Checkpoint, held: Mapping[str, int], where: str) -> list[str]:
    """The files of the weights that are read, one format of them. Raises CheckpointError for a path in an index."""
    first = first_file(checkpoint, held, where)
    return shards(checkpoint, first, held, where) if first.endswith(".index.json") else [first]


def _need_room(folder: Path, sizes: Mapping[str, int]) -> int:
    """The bytes that are still missing. Raises HubError where the disk cannot hold them."""
    missing = sum(nbytes for name, nbytes in sizes.items() if not (folder / name).exists())
    free = shutil.disk_usage(folder).free
    if missing > free:
        raise HubError(
            f"{size(missing)} are still to be downloaded and the disk of {folder} has {size(free)} free: free some, or "
            "move the cache (HF_HOME, for ModelScope MODELSCOPE_CACHE)"
        )
    return missing
