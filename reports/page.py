"""Self-contained HTML pages with inline style, scripts and data.

Mails, answers and model output are hostile text. Templates escape everything that Python renders, scripts set text
only, embedded data cannot end its element, and a content security policy forbids every request.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

Row = Mapping[str, Any]
"""A record as plain values: a finished step, a prediction, a line of a table."""


def embed_json(value: Any) -> str:
    """Return JSON that is safe inside a script element: ASCII without angle brackets and ampersands; NaN and infinity are null."""
    text = json.dumps(_finite(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def render(template: str, **values: Any) -> Markup:
    """Fill a template of `templates/` with escaped values. Values of type `Markup` are HTML already."""
    return Markup(_templates().get_template(template).render(values))


def page(title: str, body: Markup, *, scripts: Sequence[str] = (), data: Any = None) -> str:
    """Return the whole document. `scripts` are names of files in assets/, `data` is their input."""
    embedded = Markup(embed_json(data)) if scripts else None
    return str(render("page.html.jinja", title=title, body=body, scripts=scripts, data=embedded))


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("reports"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_encodable,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    assets = resources.files("reports") / "assets"
    templates.globals["asset"] = lambda name: Markup((assets / name).read_text(encoding="utf-8"))
    return templates


def _encodable(value: object) -> object:
    """Return text without lone surrogates, which UTF-8 cannot encode."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return value.encode("utf-8", "replace").decode("utf-8")
    return value


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
