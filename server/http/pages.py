"""The pages for a browser: files of server/http/page as they are, under a policy that lets nothing else in."""

from collections.abc import Mapping
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

FILES = Path(__file__).resolve().parent / "page"
NAMES = {"/": "index.html", "/status": "status.html"}  # other paths are a file's own name
_files = {path.relative_to(FILES).as_posix() for path in FILES.rglob("*") if path.is_file()}
PATHS = frozenset({*NAMES, *(f"/{name}" for name in _files.difference(NAMES.values()))})
TYPES = {
    ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".png": "image/png",
    ".mp4": "video/mp4", ".wav": "audio/wav",
}  # fmt: skip
POLICY = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' blob:", "media-src 'self' blob:",
    "connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
))  # fmt: skip
HEADERS = {
    "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin", "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Cache-Control": "no-cache",
}  # fmt: skip


def page_answers() -> Mapping[str, Response]:
    """The answer of each path. They hold nothing of this server, so they are given without a key, too."""
    return {path: _file(FILES / NAMES.get(path, path[1:])) for path in PATHS}


def add_pages(app: Starlette) -> None:
    """A route for each file."""
    files = page_answers()

    async def page(request: Request) -> Response:
        return files[request.scope["route"].path]

    for path in sorted(PATHS):
        app.add_route(path, page, methods=["GET", "HEAD"])


def _file(path: Path) -> Response:
    return Response(path.read_bytes(), media_type=TYPES[path.suffix], headers=HEADERS)
