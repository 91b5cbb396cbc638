"""Read a YAML file of settings, and the file that it extends."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import yaml

from configs.config import SECTIONS, Config, sections_of
from configs.gone import gone
from configs.schema import ConfigError
from training.yaml_text import load_yaml

EXTENDS = "extends"
_WHOLE = ("blend_weights", "extra_litellm_params", "task_settings")
"""Settings whose mapping is one value: another mapping replaces it."""
_LISTED = f"`python run.py --help SECTION` lists the keys of a section ({', '.join(SECTIONS)})"


def read_profile(path: Path, extended_by: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return the settings of a file on top of those of the file that it extends, in their sections.

    Raises ConfigError for a file that is missing, no mapping or extends itself, and for a key that is unknown or misplaced.
    """
    values = _mapping_in(path)
    name = values.pop(EXTENDS, None)
    require_placed(values, str(path))
    if name is None:
        return values
    if not isinstance(name, str) or Path(name).name != name:
        raise ConfigError(f"{path}: extends: {name!r} is not the name of a file in the same folder")
    other, files = path.parent / name, (*extended_by, path)
    if other.resolve() in [file.resolve() for file in files]:
        chain = " -> ".join(file.name for file in (*files, other))
        raise ConfigError(f"{path}: extends: a file cannot extend itself ({chain})")
    if not other.is_file():
        raise ConfigError(f"{path}: extends: there is no file {other}")
    return merged(read_profile(other, files), values)


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return both mappings in one. `above` wins; mappings that both have are merged too."""
    together = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(below.get(key), dict) and key not in _WHOLE
        together[key] = merged(below[key], value) if both else value
    return together


def _mapping_in(path: Path) -> dict[str, Any]:
    if not path.is_file():
        problem = "is not a file" if path.exists() else "does not exist"
        raise ConfigError(f"config file {path} {problem}; the project's own are in configs/")
    try:
        values = load_yaml(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist, for example
        raise ConfigError(f"config file {path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"config file {path} must hold `key: value` lines, not a {type(values).__name__}")
    return values


def require_placed(values: dict[Any, Any], where: str) -> None:
    """Raise ConfigError, which begins with `where`, unless every key of a mapping is in its section. Empty sections go."""
    for name, value in list(values.items()):
        if name not in Config.model_fields:
            raise _misplaced(str(name), where)
        if name not in SECTIONS:
            continue
        if not isinstance(value, dict | None):
            raise ConfigError(f"{where}: section '{name}' must hold `key: value` lines, not {value!r}")
        for key in value or {}:
            require_in_section(str(key), name, where)
        if not value:
            del values[name]


def _misplaced(name: str, where: str) -> ConfigError:
    if owners := sections_of(name):
        return ConfigError(f"{where}: {name} belongs in the section {' or '.join(f'{owner}:' for owner in owners)}")
    return unknown(name, where, "section or key")


def unknown(name: str, where: str, what: str = "key") -> ConfigError:
    """Return the error for a name that is no setting, with the nearest one, or what to do instead."""
    if said := gone(name):
        return ConfigError(f"{where}: {said}")
    full = {key: f"{section}.{key}" for section, kind in SECTIONS.items() for key in kind.model_fields}
    full |= {key: key for key in (*Config.model_fields, EXTENDS)}
    near = difflib.get_close_matches(name, full, n=1, cutoff=0.6)
    hint = f"did you mean '{full[near[0]]}'?" if near else _LISTED
    return ConfigError(f"{where}: unknown {what} '{name}'; {hint}")


def require_in_section(key: str, section: str, where: str) -> None:
    """Raise ConfigError, which begins with `where`, unless the section has this key."""
    if key in SECTIONS[section].model_fields:
        return
    if said := gone(f"{section}.{key}"):
        raise ConfigError(f"{where}: {said}")
    if owners := sections_of(key):
        owned = " or ".join(f"'{name}'" for name in owners)
        raise ConfigError(f"{where}: '{key}' is no key of section '{section}'; it belongs in section {owned}")
    if key in Config.model_fields:
        raise ConfigError(f"{where}: '{key}' is no key of section '{section}'; it belongs at the top")
    near = difflib.get_close_matches(key, SECTIONS[section].model_fields, n=1, cutoff=0.6)
    hint = f"did you mean '{section}.{near[0]}'?" if near else f"`python run.py --help {section}` lists them"
    raise ConfigError(f"{where}: unknown key '{key}' in section '{section}'; {hint}")
