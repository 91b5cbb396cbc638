"""A Hub on loopback: the folders `models/OWNER/NAME` and `datasets/OWNER/NAME` below one, as the Hub's client asks for them."""

from __future__ import annotations

import hashlib
import json
import re
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.fakes.server import FakeServer

REVISION = "0123456789abcdef0123456789abcdef01234567"
_API = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/([^/?]+)/?([^?]*))?")
_FILE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/[^/]+/(.+)")


class Hub(FakeServer):
    """Serves within a `with` block. A repository has one revision. The first `busy` requests for files get a 503."""

    def __init__(self, folder: Path, busy: int = 0) -> None:
        super().__init__()
        self.busy = busy
        self.RequestHandlerClass = _Handler
        self.folder = folder


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if self.server.busy and _FILE.fullmatch(path):
            self.server.busy -= 1
            self._reply(503, {"error": "busy"}, {"Retry-After": "0"})
            return
        if asked := _FILE.fullmatch(path):
            self._file(self.server.folder / ("datasets" if asked[1] else "models") / asked[2] / asked[3])
        elif asked := _API.fullmatch(path):
            self._described(self.server.folder / asked[1] / asked[2], asked[2], asked[3], asked[5])
        else:
            self._reply(404, {"error": "no such page"})

    do_HEAD = do_POST = do_GET

    def _described(self, repository: Path, name: str, what: str | None, below: str | None) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if not repository.is_dir():
            self._reply(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        elif what == "tree":
            self._reply(200, [_entry(file, repository) for file in sorted((repository / (below or "")).rglob("*"))])
        elif what == "paths-info":
            paths = [repository / path for path in json.loads(body)["paths"]]
            self._reply(200, [_entry(path, repository) for path in paths if path.exists()])
        else:
            files = [{"rfilename": str(file.relative_to(repository))} for file in _files(repository)]
            self._reply(200, {"id": name, "sha": REVISION, "siblings": files, "private": False, "tags": []})

    def _file(self, file: Path) -> None:
        if not file.is_file():
            self._reply(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
            return
        content = file.read_bytes()
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": REVISION}
        status = 200
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or ""):
            begin, end = int(asked[1]), int(asked[2] or len(content) - 1)
            headers["Content-Range"] = f"bytes {begin}-{min(end, len(content) - 1)}/{len(content)}"
            status, content = 206, content[begin : end + 1]
        self._reply(status, content, headers)

    def _reply(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "X-Repo-Commit": REVISION, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Keep the output of tests quiet."""


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _entry(path: Path, repository: Path) -> dict[str, Any]:
    name = str(path.relative_to(repository))
    if path.is_dir():
        return {"type": "directory", "path": name, "oid": hashlib.sha1(name.encode()).hexdigest()}
    return {
        "type": "file",
        "path": name,
        "size": path.stat().st_size,
        "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
    }
