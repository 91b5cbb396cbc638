"""Where models, data and outputs are kept."""

from __future__ import annotations

import os
from pathlib import Path

CODE = Path(__file__).resolve().parents[1]
_OF_THE_USER = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
HOME = _OF_THE_USER / "email-search-agent" if CODE.name in ("site-packages", "dist-packages") else CODE
"""The checkout. An update of an installed package would remove what lies next to its code, so that has a folder of its own."""
