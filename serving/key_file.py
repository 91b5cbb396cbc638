"""The file of access keys, and of the inboxes that each key may ask about."""

from __future__ import annotations

import hashlib
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from serving.access import ANONYMOUS, OWNER
from serving.settings import LEAST_KEY_CHARS, AccessKey
from training.errors import BadInput
from training.yaml_text import load_yaml

_EXPECTED = f"expected a list of name, key (at least {LEAST_KEY_CHARS} ASCII characters) and optionally inboxes"


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=64, pattern=r"^[\w.@-]+$")
    # Characters that a header can carry, with no space at either end that a client would trim.
    key: str = Field(min_length=LEAST_KEY_CHARS, max_length=512, pattern=r"^[!-~][ -~]*[!-~]$")
    inboxes: list[str] | None = Field(default=None, min_length=1)


def read_keys(file: Path) -> tuple[AccessKey, ...]:
    """Return the keys in `file` by their SHA-256, so that no key is stored with the deployment. Raises BadInput."""
    try:
        content = load_yaml(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(
            f"access_keys: {file} cannot be read ({error.strerror}); name a YAML file, {_EXPECTED}"
        ) from None
    except (ValueError, yaml.YAMLError) as error:
        raise BadInput(f"access_keys: {file} is not YAML ({type(error).__name__}); {_EXPECTED}") from None
    try:
        entries = TypeAdapter(list[_Entry]).validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]  # its input may be a key and is not shown
        number, *parts = first["loc"] or (None,)
        where = "content" if number is None else ": ".join([f"entry {int(number) + 1}", *map(str, parts)])
        reason = first["msg"][0].lower() + first["msg"][1:]
        raise BadInput(f"access_keys: {file}: {where}: {reason}; {_EXPECTED}") from None
    names = [entry.name for entry in entries]
    if len(set(names)) < len(names) or len({entry.key for entry in entries}) < len(entries):
        raise BadInput(f"access_keys: {file}: a name or a key occurs twice; each may occur once")
    if reserved := {ANONYMOUS, OWNER} & set(names):
        raise BadInput(f"access_keys: {file}: the name {min(reserved)} is the service's own; choose another one")
    if not entries:
        raise BadInput(f"access_keys: {file} has no key; leave the setting out for a service on loopback without keys")
    return tuple(
        AccessKey(
            name=entry.name,
            sha256=hashlib.sha256(entry.key.encode()).hexdigest(),
            inboxes=None if entry.inboxes is None else tuple(entry.inboxes),
        )
        for entry in entries
    )
