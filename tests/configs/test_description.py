"""`run.py --help KEY`: every setting is described, with the values that the configuration really has."""

from __future__ import annotations

import pytest
import yaml

import run
from configs.description import describe
from configs.schema import SECTIONS, Config, ConfigError
from training.backends.torch.settings import TorchEngineSettings

PARTS = [
    f"{name}.{part}"
    for name in ("torch", "health", "verifiable_weights")
    for part in type(getattr(Config(), name)).model_fields
]


def lines_of(key: str) -> list[str]:
    return describe(key).splitlines()


@pytest.mark.parametrize("key", [*Config.model_fields, *PARTS])
def test_every_setting_has_a_description_and_its_real_default(key: str) -> None:
    lines = lines_of(key)
    assert lines[0] == key and len(lines[1]) > 12, "the second line says what the setting does"
    assert all(len(line) <= 100 or " " not in line.strip() for line in lines)
    assert f"--set {key}" in describe(key)
    name, _, part = key.partition(".")
    value = getattr(getattr(Config(), name), part) if part else getattr(Config(), name)
    if default := [line.split(maxsplit=1)[1] for line in lines if line.startswith("  default ")]:
        shown = yaml.safe_load(" ".join([*default, *_after(lines, "  default ")]))
        assert shown == (list(value) if isinstance(value, tuple) else value)
    else:
        assert any(line.startswith("  parts ") for line in lines)


def _after(lines: list[str], label: str) -> list[str]:
    """Return the continuation lines of a labelled line."""
    start = next(number for number, line in enumerate(lines) if line.startswith(label)) + 1
    end = next((number for number in range(start, len(lines)) if lines[number][2] != " "), len(lines))
    return [line.strip() for line in lines[start:end]]


def test_a_setting_in_full() -> None:
    assert lines_of("groups_per_step") == [
        "groups_per_step",
        "  scenarios (questions) per step",
        "  type        integer, >= 1 and <= 1024",
        "  default     24",
        "  set it      --set groups_per_step=VALUE, or in section trainer of a YAML file",
    ]
    assert lines_of("trainer.groups_per_step") == lines_of("groups_per_step")
    assert lines_of("trainer.torch.threads")[2] == "  type        integer or null, >= 1"
    assert "one of torch, local, serverless" in describe("backend")
    assert "section trainer or questions" in describe("extra_litellm_params")


def test_a_section_lists_its_settings() -> None:
    for section, keys in SECTIONS.items():
        listed = {line.strip().partition(":")[0] for line in lines_of(section)[1:]}
        assert listed == keys


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("group_per_step", "did you mean 'groups_per_step'"),
        ("agent.max_steps", "it belongs in section 'trainer'"),
        ("torch.thread", f"its parts are {', '.join(TorchEngineSettings.model_fields)}"),
        ("seed.start", "it has no parts"),
        ("zzz", "lists the keys of a section (data, agent, "),
    ],
)
def test_an_unknown_name_is_one_line_and_exit_code_2(key: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError):
        describe(key)
    with pytest.raises(SystemExit) as ended:
        run.main(["--help", key])
    shown = capsys.readouterr()
    assert ended.value.code == 2 and shown.out == ""
    assert shown.err.startswith(f"error: --help {key}: ") and said in shown.err and shown.err.count("\n") == 1


def test_the_command_line_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main(["--help", "lora_rank"])
    assert ended.value.code == 0 and capsys.readouterr().out == describe("lora_rank") + "\n"
