"""A model of ModelScope's hub, through modelscope_hub.

MODELSCOPE_ENDPOINT, MODELSCOPE_CACHE and MODELSCOPE_API_TOKEN are read by that library.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from configs.setting import HubModel
from server.http.health import DownloadProgress
from server.hub.client import HubError, not_installed, one_line, told

DEFAULT_REVISION = "master"


class ModelScope:
    """This hub has no word for the commit that a branch stands at: the revision stays as it was asked for."""

    def __init__(self, model: HubModel, progress: DownloadProgress) -> None:
        """Raises HubError where the library is not installed."""
        try:
            from modelscope_hub import HubApi, _download
        except ImportError:
            raise not_installed("modelscope_hub", "modelscope") from None
        self._model = model
        self._progress = progress
        if not sys.stderr.isatty():  # its own bar, of files, has no other switch; those of bytes are ours
            setattr(_download, "tqdm", partial(tqdm, disable=True))  # noqa: B010 - which it does not export
        self._api = HubApi()
        self.revision = model.revision or DEFAULT_REVISION
        with self._translated():
            self.where = str(self._api.resolve_endpoint_for_read(model.name))
        self._api = HubApi(endpoint=self.where)

    def fetch(self, names: Sequence[str]) -> Path:
        """The directory of this revision; a file that differs from the hub's list is fetched again."""
        missing = [name for name in names if name not in self._listed]
        if missing:
            raise HubError(
                f"{self._model.name} has no file {missing[0]} on {self.where}: not a checkpoint that can be served"
            )
        with self._translated():
            return Path(
                self._api.download_repo(
                    self._model.name,
                    "model",
                    revision=self.revision,
                    file_list=[self._listed[name] for name in names],
                    progress_callbacks=[_told_to(self._progress)],
                )
            )

    def sizes(self) -> Mapping[str, int]:
        """Of the list that the first call asks for."""
        return {path: entry["Size"] for path, entry in self._listed.items()}

    @cached_property
    def _listed(self) -> dict[str, dict[str, Any]]:
        """The hub's entry of each file, by its path."""
        with self._translated():
            files = self._api.list_repo_files(self._model.name, "model", revision=self.revision)
        return {
            file.path: {"Path": file.path, "Size": file.size or 0, "Sha256": file.sha256, "Type": "blob"}
            for file in files
            if file.type != "tree"
        }

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """The library's errors, each as a sentence. Derived classes stand before their bases."""
        from modelscope_hub import errors

        model = self._model.name
        token = "set MODELSCOPE_API_TOKEN to a token of an account that may read it"
        try:
            yield
        except errors.FileDownloadError as error:
            raise self._failed(error) from None
        except errors.NotExistError:
            raise HubError(
                f"no model {self._model} on ModelScope's hub, and no directory {Path(model).absolute()}: check the "
                f"name; if it is private, {token}"
            ) from None
        except (errors.AuthenticationError, errors.PermissionDeniedError):
            raise HubError(f"{model}: ModelScope's hub does not let this account read it: {token}") from None
        except errors.NetworkError:
            raise HubError(
                f"{model}: cannot reach ModelScope's hub: check the connection and MODELSCOPE_ENDPOINT; what was "
                "downloaded before is served by its directory"
            ) from None
        except errors.HubError as error:
            raise HubError(f"{model}: {one_line(error)}") from None
        except OSError as error:
            raise told(error, model, "MODELSCOPE_CACHE") from None

    def _failed(self, error: Any) -> HubError:
        """Of files that were not had, the first one's reason."""
        name, why = next(iter(error.failed_files.items()), ("", error))
        if isinstance(why, OSError) and why.errno is not None:
            return told(why, self._model.name, "MODELSCOPE_CACHE")
        return HubError(
            f"{self._model.name}: {name} was not downloaded ({one_line(why)}): start again, it goes on where it stopped"
        )


def _told_to(progress: DownloadProgress) -> type:
    """A class that the library makes one object of for each file."""
    from modelscope_hub._download import ProgressCallback

    from server.hub.progress import LoggedBar, counted

    bars = counted(tqdm if sys.stderr.isatty() else LoggedBar, progress)

    class ToldFile(ProgressCallback):  # its types may be absent
        """A file's progress as a bar, on a terminal or in the log."""

        def __init__(self, filename: str, file_size: int) -> None:
            super().__init__(filename, file_size)
            self._bar = bars(total=file_size, desc=filename, unit="B", unit_scale=True)

        def update(self, size: int) -> None:
            self._bar.update(size)

        def end(self) -> None:
            self._bar.close()

    return ToldFile
