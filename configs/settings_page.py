"""Write docs/settings.md, the page of all settings: `python -m configs.settings_page` (`make settings-page`)."""

from __future__ import annotations

from pathlib import Path

from pydantic.fields import FieldInfo

from configs.config import SECTIONS, Config
from configs.description import allowed, default_of, settings_of

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
_HEAD = """# Settings

<!-- Written by `make settings-page`: do not edit. -->

Every setting with its default, from the models that validate it. `--set trainer.max_steps=3` overrides one. The section may
be left out of a key that only one section has: `--set max_steps=3`. A YAML file has the keys in their sections, and may name
another file of its folder whose values it builds on (`extends: training_cpu.yaml`). Mappings are merged, except
`blend_weights`, `extra_litellm_params` and `task_settings`; any other value replaces the one below.
`python run.py --help trainer` prints a section, `--help max_steps` one setting.
"""


def settings_page() -> str:
    """Return the page in Markdown."""
    top = [(key, field) for key, field in Config.model_fields.items() if key not in SECTIONS]
    parts = [_HEAD, "## At the top of a file\n", _table(top)]
    for section in SECTIONS:
        parts += [f"## {section}\n", f"{_sentence(Config.model_fields[section])}\n", _table(list(settings_of(section)))]
    return "\n".join(parts)


def _table(settings: list[tuple[str, FieldInfo]]) -> str:
    rows = ["| setting | default | allowed | |", "|---|---|---|---|"]
    for key, field in settings:
        cells = (f"`{key}`", f"`{default_of(field)}`", allowed(field), field.description or "")
        rows.append(f"| {' | '.join(' '.join(cell.split()).replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(rows) + "\n"


def _sentence(field: FieldInfo) -> str:
    text = field.description or ""
    return f"{text[:1].upper()}{text[1:]}."


if __name__ == "__main__":
    PAGE.write_text(settings_page(), encoding="utf-8")
