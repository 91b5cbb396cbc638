"""One self-contained HTML file: inline style, script and data, no request to anywhere, nothing in it trusted.

Mails, answers and model output are hostile text. Everything that Python renders goes through `escape`, everything that
the scripts render is set as text, the data is embedded so that no text can end its element, and a content policy
forbids every request.
"""

from __future__ import annotations

import html
import json
import math
import os
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)


def escape(value: object) -> str:
    """Text for element content and quoted attributes; what UTF-8 cannot hold becomes a question mark."""
    return html.escape(str(value).encode("utf-8", "replace").decode("utf-8"), quote=True)


def embed_json(value: Any) -> str:
    """JSON that is safe inside a script element: pure ASCII, no angle brackets or ampersands; NaN and infinity are null."""
    text = json.dumps(_finite(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def page(title: str, body: str, *, scripts: Sequence[str] = (), data: Any = None) -> str:
    """The whole document. `body` is HTML, `scripts` are names of files in assets/, `data` is what they read."""
    embedded = ""
    if scripts:
        embedded = f'<script type="application/json" id="data">{embed_json(data)}</script>\n' + "".join(
            f"<script>\n{_asset(script)}</script>\n" for script in scripts
        )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        f"{embedded}</body>\n</html>\n"
    )


def write_text(path: Path, text: str) -> Path:
    """Write a text file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{time.time_ns()}")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _asset(name: str) -> str:
    return resources.files("reports").joinpath("assets", name).read_text(encoding="utf-8")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
