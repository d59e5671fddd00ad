"""A model of the Hugging Face hub, or of any server that speaks as it does, through huggingface_hub.

HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE are read by that library.
"""

import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from configs.setting import HubModel
from server.http.health import DownloadProgress
from server.hub.client import HubError, not_installed, one_line, told

# Headers of a file of which the library makes paths in its cache, without a look at what stands there.
_PATHS = ("ETag", "X-Linked-Etag", "X-Repo-Commit")
_PLAIN = re.compile(r"\w[\w.+=~:-]*", re.ASCII)
_TOKEN = "set HF_TOKEN to a token of an account that may read it"


class HuggingFace:
    """Files come one after the other; the library makes several connections for one where it can."""

    def __init__(self, model: HubModel, progress: DownloadProgress) -> None:
        """Raises HubError where the library is not installed."""
        try:
            import huggingface_hub
            from huggingface_hub import constants
        except ImportError:
            raise not_installed("huggingface_hub", "hub") from None
        huggingface_hub.set_client_factory(_careful_client)
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs every request of the library
        # It warns of each attempt to connect; what failed in the end is one error of ours.
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        self._library = huggingface_hub
        self._model = model
        self._progress = progress
        self._revision = model.revision or constants.DEFAULT_REVISION
        self.where = constants.ENDPOINT

    @property
    def revision(self) -> str:
        """A commit, after the first file."""
        return self._revision

    def fetch(self, names: Sequence[str]) -> Path:
        """The snapshot's directory, which is called by its commit. The first call pins the commit for all others."""
        from huggingface_hub.utils.tqdm import tqdm

        from server.hub.progress import LoggedBar, counted

        bars = counted(tqdm if sys.stderr.isatty() else LoggedBar, self._progress)
        folder = Path()
        for name in names:
            with self._translated(name):
                path = self._library.hf_hub_download(
                    self._model.name,
                    name,
                    revision=self._revision,
                    tqdm_class=bars,
                )
                folder = Path(path).parent
                self._revision = folder.name
        return folder

    def sizes(self) -> Mapping[str, int] | None:
        """None with HF_HUB_OFFLINE."""
        from huggingface_hub.errors import OfflineModeIsEnabled

        with self._translated():
            try:
                info = self._library.HfApi().model_info(self._model.name, revision=self._revision, files_metadata=True)
            except OfflineModeIsEnabled:
                return None
            return {file.rfilename: file.size or 0 for file in info.siblings or ()}

    @contextmanager
    def _translated(self, name: str = "") -> Iterator[None]:
        """The library's errors, each as a sentence. Derived classes stand before their bases."""
        import httpx2
        from huggingface_hub import errors

        model, where = self._model.name, self.where
        try:
            yield
        except errors.GatedRepoError:
            raise HubError(f"{model} is gated: accept its terms on {where}/{model}, then {_TOKEN}") from None
        except errors.RevisionNotFoundError:
            raise HubError(f"{model} has no revision {self._revision!r} on {where}") from None
        except errors.RepositoryNotFoundError:
            raise HubError(
                f"no model {model} on {where}, and no directory {Path(model).absolute()}: check the name; "
                f"if it is private, {_TOKEN}"
            ) from None
        except errors.RemoteEntryNotFoundError:
            raise HubError(f"{model} has no file {name} on {where}: not a checkpoint that can be served") from None
        except errors.LocalEntryNotFoundError as error:
            raise self._unreachable(error.__cause__ or error) from None
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None
        except OSError as error:
            raise told(error, model, "HF_HOME") from None
        except ValueError as error:  # a name or an answer that the library refuses
            raise HubError(f"{model}: {one_line(error)}") from None

    def _unreachable(self, error: BaseException) -> HubError:
        from huggingface_hub.errors import FileMetadataError, HfHubHTTPError, OfflineModeIsEnabled

        model = self._model
        if isinstance(error, HfHubHTTPError):
            status = error.response.status_code
            remedy = _TOKEN if status in (401, 403) else "try again later"
            return HubError(f"{model}: {self.where} answered with status {status}: {remedy}")
        if isinstance(error, OfflineModeIsEnabled):
            return HubError(f"{model} is not whole in the cache, and HF_HUB_OFFLINE is set: start once without it")
        if isinstance(error, FileMetadataError):
            return HubError(f"{model}: {self.where} does not answer as a hub does: check HF_ENDPOINT and proxies")
        return HubError(
            f"{model}: cannot reach {self.where} ({one_line(error)}): check the connection and HF_ENDPOINT; "
            "HF_HUB_OFFLINE=1 serves what was downloaded before"
        )


def _careful_client() -> Any:
    """The library's own client, which raises HubError for a header that would lead out of the cache."""
    from huggingface_hub.utils._http import default_client_factory

    client = default_client_factory()
    client.event_hooks = {**client.event_hooks, "response": [_refuse_paths]}
    return client


def _refuse_paths(response: Any) -> None:
    """Before the library has the answer: a hub cannot be innocent when it is checked and hostile when it is read."""
    if response.request.method != "HEAD":  # only of these the library takes names
        return
    for header in _PATHS:
        name = response.headers.get(header, "0").lstrip("W/").strip('"')  # as the library reads it
        if not _PLAIN.fullmatch(name):
            raise HubError(
                f"{response.request.url.host} answered with {header} {name[:80]!r}, which would lead out of the cache: "
                "do not trust this hub; check HF_ENDPOINT"
            )
