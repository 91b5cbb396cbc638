"""Chromium for the tests of pages, if it is installed (`make browser`)."""

from __future__ import annotations

import shutil

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


def headless(*options: str) -> list[str]:
    """Return the command that starts it without a window and without requests of its own."""
    assert BROWSER is not None
    own = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    return [BROWSER, *own, *options]
