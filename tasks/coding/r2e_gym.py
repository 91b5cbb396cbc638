"""R2E-Gym (https://huggingface.co/datasets/R2E-Gym/R2E-Gym-Lite) in its own columns, from the Hub or from parquet files.

Each row is a commit of a public repository: an image of the repository before the commit with the tests, a description
of the bug, and the outcome of every test after the commit.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tasks.coding.scenarios import Edit, RepositoryBug
from training.errors import BadInput

COLUMNS = (
    *("repo_name", "docker_image", "commit_hash", "parsed_commit_content", "problem_statement"),
    "expected_output_json",
)
FOLDER = "/testbed"
HIDDEN = ("/r2e_tests", "/root/r2e_tests", f"{FOLDER}/r2e_tests", f"{FOLDER}/run_tests.sh", f"{FOLDER}/.git")
"""Tests, and the history, which has the repair."""
COMMAND = "ln -sfn /r2e_tests r2e_tests; bash run_tests.sh"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def repository_bugs(
    source: str, *, train: int | None, test: int, seed: int, excluded: Sequence[str] = ()
) -> list[RepositoryBug]:
    """Return up to `train` bugs to train on (all if it is None), and `test` others that are held out, chosen by `seed`.

    The source is a Hub dataset id, a folder of parquet files or one such file. Rows without a problem statement, an image,
    expected outcomes or a change outside of tests are left out.

    Raises:
        BadInput: the source is not there, lacks a column, has a malformed row, or holds too few bugs.
    """
    rows = _rows(source)
    if missing := [name for name in COLUMNS if name not in rows.column_names]:
        raise BadInput(f"bugs={source}: the dataset lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}")
    rows = rows.select_columns(list(COLUMNS))
    commits = rows.with_format(None)["commit_hash"]
    order = sorted(range(len(rows)), key=lambda index: hashlib.sha256(f"{seed}-{commits[index]}".encode()).digest())
    usable = _usable(source, rows, order, frozenset(excluded))
    found: list[RepositoryBug] = []
    for bug in usable:
        found.append(bug.model_copy(update={"split": "test"}) if len(found) < test else bug)
        if train is not None and len(found) == train + test:
            break
    if len(found) <= test:
        raise BadInput(
            f"bugs={source}: {len(found)} usable bugs, but coding_test_size={test} holds out as many or more: lower it"
        )
    return found


def _rows(source: str) -> Any:
    """Return the dataset's train split, memory-mapped."""
    files: list[str] = []
    try:
        place = Path(source).expanduser()
        there = place.exists()
    except (OSError, RuntimeError) as error:  # a name that is too long, a forbidden folder, no such user's home
        raise BadInput(f"bugs={source}: {getattr(error, 'strerror', None) or error}") from None
    if there:
        files = [str(file) for file in ([place] if place.is_file() else sorted(place.rglob("*.parquet")))]
        if not files:
            raise BadInput(f"bugs={source}: there is no .parquet file in this folder")
    elif not _HUB_ID.fullmatch(source):
        raise BadInput(
            f"bugs={source}: no such folder; give built-in, a folder of parquet files or a Hub id (owner/name)"
        )
    import datasets
    from huggingface_hub.utils import logging as hub_logging

    datasets.disable_progress_bars()
    hub_logging.set_verbosity_error()  # a line for each of its retries
    try:
        if files:
            return datasets.load_dataset("parquet", data_files=files, split="train")
        return datasets.load_dataset(source, split="train")
    except Exception as error:  # the Hub's, Arrow's and the library's own, which have no common class
        said = str(error).strip().partition("\n")[0] or "no reason given"
        raise BadInput(f"bugs={source}: it cannot be read ({type(error).__name__}: {said})") from None


def _usable(source: str, rows: Any, order: Sequence[int], excluded: frozenset[str]) -> Iterator[RepositoryBug]:
    for index in order:
        row = rows[index]
        id = f"{row['repo_name']}-{str(row['commit_hash'])[:12]}"
        if id in excluded:
            continue
        try:
            bug = _bug(id, row)
        except ValidationError as error:
            first = error.errors()[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise BadInput(f"bugs={source}: row {index} ({id}) is malformed: {why}") from None
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise BadInput(f"bugs={source}: row {index} ({id}) is malformed: {type(error).__name__}: {error}") from None
        if bug is not None:
            yield bug


def _bug(id: str, row: dict[str, Any]) -> RepositoryBug | None:
    """Return the bug of a row; None if there is nothing to repair or to test. Raises an error for a malformed row."""
    if wrong := [name for name in COLUMNS if not isinstance(row[name], str | None)]:
        raise ValueError(f"{wrong[0]} is no text")
    if missing := [name for name in ("repo_name", "commit_hash") if not row[name]]:
        raise ValueError(f"{missing[0]} is empty")
    if not (row["problem_statement"] or "").strip() or not row["docker_image"]:
        return None
    expected = _expected(row["expected_output_json"])
    edits, deleted = _repair(json.loads(row["parsed_commit_content"]))
    if not expected or not (edits or deleted):
        return None
    return RepositoryBug(
        id=id,
        split="train",
        kind=row["repo_name"],
        problem=re.sub(r"\[/?ISSUE\]", "", row["problem_statement"]).strip(),
        image=row["docker_image"],
        folder=FOLDER,
        hidden=HIDDEN,
        command=COMMAND,
        expected=expected,
        edits=tuple(edits),
        deleted=tuple(deleted),
    )


def _expected(text: str) -> dict[str, str]:
    """Parse outcomes by test name. A name may contain colour codes."""
    expected = {_COLOUR.sub("", name): str(outcome) for name, outcome in json.loads(text or "{}").items()}
    "".join([*expected, *expected.values()]).encode()  # raises for half of a surrogate pair, which no request can carry
    return expected


def _repair(commit: dict[str, Any]) -> tuple[list[Edit], list[str]]:
    """Return the commit's changes to Python files other than tests: one edit per hunk, and the deleted files."""
    edits, deleted = [], []
    for change in commit["file_diffs"]:
        path = change["header"]["file"]["path"]
        if not path.endswith(".py") or is_test(path):
            continue
        if (change.get("plus_file") or {}).get("path") == "/dev/null":
            deleted.append(path)
            continue
        for hunk in change.get("hunks") or []:
            old = hunk["descriptor"]["old_range"]
            # Diffs leave out a length of 1.
            start, length = int(old["start"]), 1 if old["length"] is None else int(old["length"])
            kept = [line for line in hunk["line_group"]["all_lines"] if line["type"] in ("context", "added")]
            first = (
                start if length else start + 1
            )  # the line number of a hunk that only inserts is that of the line before it
            text = "".join(f"{line['content']}\n" for line in kept)
            edits.append(Edit(path=path, first=first, last=first + length - 1, text=text))
    return edits, deleted


def is_test(path: str) -> bool:
    """Return whether the dataset counts a file as a test."""
    *folders, name = path.split("/")
    return name.startswith("test_") or name.endswith("_test.py") or any(f.lower() in ("test", "tests") for f in folders)
