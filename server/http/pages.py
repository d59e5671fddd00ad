"""The pages for a browser: files of server/http/page as they are, under a policy that lets nothing else in."""

from collections.abc import Mapping
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

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


def page_answers(root_path: str | None = None) -> Mapping[str, Response]:
    """The answer of each path. They hold nothing of this server, so they are given without a key, too.

    root_path: what a proxy leaves in front of a path; without a slash behind it, it leads to the page.
    """
    files = {path: _file(FILES / NAMES.get(path, path[1:])) for path in PATHS}
    return files if root_path is None else {**files, root_path: RedirectResponse(f"{root_path}/")}


def add_pages(app: Starlette, root_path: str | None) -> None:
    """A route for each file."""
    answers = page_answers(root_path)

    async def page(request: Request) -> Response:
        return answers[request.scope["route"].path]

    for path in sorted(answers):
        app.add_route(path, page, methods=["GET", "HEAD"])


def _file(path: Path) -> Response:
    return Response(path.read_bytes(), media_type=TYPES[path.suffix], headers=HEADERS)
