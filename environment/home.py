"""The version of this project, what its command is called, and where models, data and outputs are kept."""

from __future__ import annotations

import os
from pathlib import Path

VERSION = "0.2.0"
CODE = Path(__file__).resolve().parents[1]
_OF_THE_USER = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
_INSTALLED = CODE.name in ("site-packages", "dist-packages")
HOME = _OF_THE_USER / "email-search-agent" if _INSTALLED else CODE
"""The checkout. An update of an installed package would remove what lies next to its code, so that has a folder of its own."""


def as_called(text: str) -> str:
    """Return a text that mentions `python run.py` with the name that the command has here."""
    return text.replace("python run.py", "email-search-agent") if _INSTALLED else text
