"""The package index that pip is configured for: which wheels a project has there, and what a wheel requires."""

import ast
import email
import io
import json
import ssl
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import httpx2
from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import BuildTag, InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

PYPI = "https://pypi.org/simple"
_TAIL = 1 << 17  # bytes
JSON = "application/vnd.pypi.simple.v1+json"


class IndexFailure(Exception):
    """The index did not answer as an index does: one sentence that names the file or the project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """One file of an index page."""

    url: str
    version: Version
    build: BuildTag
    tags: frozenset[Tag]
    requires_python: str  # a specifier set, or nothing; of old files it is not always well formed

    @property
    def name(self) -> str:
        """The file's name."""
        return _file_name(self.url)


class Index:
    """An index that speaks PEP 503 (HTML) or PEP 691 (JSON). Threads may share it."""

    def __init__(self, url: str, certificates: str | None = None) -> None:
        """`certificates`: a file of authorities instead of the system's, as pip's `cert` setting has it."""
        self._url = url.rstrip("/")
        self._http = httpx2.Client(
            verify=ssl.create_default_context(cafile=certificates), timeout=60, follow_redirects=True
        )

    def close(self) -> None:
        """End its connections."""
        self._http.close()

    def wheels(self, project: str) -> list[Wheel]:
        """Every wheel of a project; none where the index does not know it. Raises IndexFailure."""
        return [wheel for url, python in self._files(project) if (wheel := _wheel(url, python))]

    def file(self, project: str, name: str) -> bytes:
        """A file of a project, whatever it is: pip asks an sdist's own build for its metadata. Raises IndexFailure."""
        for url, _ in self._files(project):
            if _file_name(url) == name:
                answer = self._get(url, name, {})
                if answer.status_code == 200:
                    return answer.content
                raise IndexFailure(f"{name}: the index answered {answer.status_code}")
        raise IndexFailure(f"{project}: the index has no {name}")

    def requirements(self, wheel: Wheel) -> list[Requirement]:
        """Requires-Dist of a wheel, from its own METADATA; only these bytes of it are fetched. Raises IndexFailure."""
        with zipfile.ZipFile(io.BufferedReader(_Ranges(self, wheel), 1 << 16)) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            metadata = email.message_from_bytes(archive.read(name))
        return [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]

    def part(self, wheel: Wheel, wanted: str) -> tuple[bytes, int]:
        """The bytes of a file that an HTTP range names, and how many the whole file has. Raises IndexFailure."""
        answer = self._get(wheel.url, wheel.name, {"Range": f"bytes={wanted}", "Accept-Encoding": "identity"})
        if answer.status_code != 206:
            raise IndexFailure(
                f"{wheel.name}: the index answered {answer.status_code} where a part of it was asked for"
            )
        return answer.content, int(answer.headers["Content-Range"].rpartition("/")[2])

    def _files(self, project: str) -> list[tuple[str, str]]:
        """The address of each file, and the Pythons that it is for."""
        url = f"{self._url}/{canonicalize_name(project)}/"
        answer = self._get(url, project, {"Accept": f"{JSON}, text/html;q=0.2"})
        if answer.status_code == 404:
            return []
        if answer.status_code != 200:
            raise IndexFailure(f"{project}: the index answered {answer.status_code}")
        read = _json_files if answer.headers["Content-Type"].startswith(JSON) else _html_files
        return [(urljoin(str(answer.url), link), python) for link, python in read(answer.text)]

    def _get(self, url: str, what: str, headers: dict[str, str]) -> httpx2.Response:
        try:
            return self._http.get(url, headers=headers)
        except httpx2.HTTPError as error:
            raise IndexFailure(f"{what}: the index cannot be read ({type(error).__name__}: {error})") from error


class _Ranges(io.RawIOBase):
    """A remote file that is read by HTTP ranges; its end, where most wheels hold all that is wanted, by the first."""

    def __init__(self, index: Index, wheel: Wheel) -> None:
        self._index, self._wheel, self._at = index, wheel, 0
        self._tail, self._size = index.part(wheel, f"-{_TAIL}")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        tail = self._size - len(self._tail)
        if self._at >= tail:
            got = self._tail[self._at - tail : end - tail]
        else:
            got, _ = self._index.part(self._wheel, f"{self._at}-{end - 1}")
        buffer[: len(got)] = got
        self._at += len(got)
        return len(got)


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        if tag == "a" and (link := said.get("href")):
            self.found.append((link, said.get("data-requires-python") or ""))


def _html_files(page: str) -> Iterator[tuple[str, str]]:
    links = _Links()
    links.feed(page)
    yield from links.found


def _json_files(page: str) -> Iterator[tuple[str, str]]:
    for file in json.loads(page)["files"]:
        yield file["url"], file.get("requires-python") or ""


def _wheel(url: str, requires_python: str) -> Wheel | None:
    """None for other kinds of files, and for the names of old that pip does not take, either."""
    try:
        _, version, build, tags = parse_wheel_filename(_file_name(url))
    except InvalidWheelFilename:
        return None
    url = urldefrag(url).url
    return Wheel(url=url, version=version, build=build, tags=tags, requires_python=requires_python)


def _file_name(url: str) -> str:
    return unquote(urlsplit(url).path.rpartition("/")[2])


def configured() -> Index:
    """The index that `pip install` of this Python asks first."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    return Index(*settings(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def settings(listed: str) -> tuple[str, str | None]:
    """The index and the file of authorities that `pip config list` tells, PyPI and None without; variables first."""
    values = dict(line.split("=", 1) for line in listed.splitlines())

    def value(key: str) -> str | None:
        found = values.get(f":env:.{key}") or values.get(f"global.{key}")
        return ast.literal_eval(found) if found else None

    return value("index-url") or PYPI, value("cert")
