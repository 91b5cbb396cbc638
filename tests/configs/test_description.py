"""`run.py --help KEY`: every setting is described, with the values that the configuration really has."""

from __future__ import annotations

from operator import attrgetter

import pytest
import yaml

import run
from configs.config import SECTIONS, Config
from configs.description import default_of, describe, settings_of
from configs.schema import ConfigError
from configs.settings_page import PAGE, settings_page
from training.backends.torch.settings import TorchEngineSettings

TOP = [key for key in Config.model_fields if key not in SECTIONS]
KEYS = [*TOP, *(key for section in SECTIONS for key, _ in settings_of(section))]


def lines_of(key: str) -> list[str]:
    return describe(key).splitlines()


@pytest.mark.parametrize("key", KEYS)
def test_every_setting_has_a_description_and_its_real_default(key: str) -> None:
    lines = lines_of(key)
    assert lines[0] == key and len(lines[1]) > 12, "the second line says what the setting does"
    assert all(len(line) <= 100 or " " not in line.strip() for line in lines)
    assert f"--set {key}" in describe(key)
    value = attrgetter(key)(Config())
    [default] = [line.split(maxsplit=1)[1] for line in lines if line.startswith("  default ")]
    shown = yaml.safe_load(" ".join([default, *_after(lines, "  default ")]))
    assert shown == (list(value) if isinstance(value, tuple) else value)


def _after(lines: list[str], label: str) -> list[str]:
    """Return the continuation lines of a labelled line."""
    start = next(number for number, line in enumerate(lines) if line.startswith(label)) + 1
    end = next((number for number in range(start, len(lines)) if lines[number][2] != " "), len(lines))
    return [line.strip() for line in lines[start:end]]


def test_a_setting_in_full() -> None:
    assert lines_of("groups_per_step") == [
        "trainer.groups_per_step",
        "  scenarios (questions) per step",
        "  type        integer, >= 1 and <= 1024",
        "  default     24",
        "  set it      --set trainer.groups_per_step=VALUE, or in section trainer of a YAML file",
    ]
    assert lines_of("trainer.groups_per_step") == lines_of("groups_per_step")
    assert lines_of("trainer.torch.threads") == lines_of("torch.threads")
    assert lines_of("trainer.torch.threads")[2] == "  type        integer or null, >= 1"
    assert "one of torch, local, serverless" in describe("backend")
    assert lines_of("torch")[2].startswith("  parts       device, threads, matmul_dtype")


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_describes_its_settings(section: str) -> None:
    shown = describe(section)
    for key, field in settings_of(section):
        assert f"\n{key} = {default_of(field)}\n  " in shown
        assert " ".join((field.description or "").split()) in " ".join(shown.split())
    assert section != "trainer" or "(integer, >= 1 and <= 1024)" in shown


def test_the_page_of_all_settings_is_up_to_date() -> None:
    assert PAGE.read_text() == settings_page(), "run `make settings-page`"
    assert all(f"| `{key}` |" in settings_page() for key in KEYS)
    assert all(line.endswith(" |") for line in settings_page().splitlines() if line.startswith("| `"))


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("group_per_step", "did you mean 'trainer.groups_per_step'"),
        ("agent.max_steps", "it belongs in section 'trainer'"),
        ("extra_litellm_params", "write trainer.extra_litellm_params or questions.extra_litellm_params"),
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
