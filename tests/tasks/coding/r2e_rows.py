"""Parquet files with the columns of R2E-Gym-Lite, and the repository that their rows are about."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SUMMARY = pa.list_(
    pa.struct(
        {
            "ast_type_str": pa.string(),
            "end_lineno": pa.int64(),
            "file_name": pa.string(),
            "name": pa.string(),
            "start_lineno": pa.int64(),
            "type": pa.string(),
        }
    )
)
SCHEMA = pa.schema(
    {
        "repo_name": pa.string(),
        "docker_image": pa.string(),
        "commit_hash": pa.string(),
        "parsed_commit_content": pa.string(),
        "execution_result_content": pa.string(),
        "modified_files": pa.list_(pa.string()),
        "modified_entity_summaries": SUMMARY,
        "relevant_files": pa.list_(pa.string()),
        "num_non_test_files": pa.int64(),
        "num_non_test_func_methods": pa.int64(),
        "num_non_test_lines": pa.int64(),
        "prompt": pa.string(),
        "problem_statement": pa.string(),
        "expected_output_json": pa.string(),
    }
)
"""The columns of the dataset card."""

MODULE = (
    '"""Numbers."""\n\n\ndef double(number):\n    return number + 1\n\n\ndef half(number):\n    return number / 2\n'
)
TESTS = """
import sys
sys.path.insert(0, "")
from pkg.target import double, half
print("=== short test summary info ===")
for name, right in (("TestDouble::test_four", double(4) == 8), ("test_half", half(5) == 2), ("test_old", True)):
    print(("PASSED" if right else "FAILED") + f" r2e_tests/test_1.py::{name}" + ("" if right else " - assert False"))
"""
REPORT = """
python3 - <<'END'
import sys
sys.path.insert(0, "")
from pkg.target import double, half
print("=== short test summary info ===")
for name, right in (("TestDouble::test_four", double(4) == 8), ("test_half", half(5) == 2), ("test_old", True)):
    print(("PASSED" if right else "FAILED") + " r2e_tests/test_1.py::" + name)
END
"""
"""The script `run_tests.sh` of the repository."""
EXPECTED = {"\x1b[1mTestDouble.test_four\x1b[0m": "PASSED", "test_half": "PASSED", "test_old": "PASSED"}


def hunk(start: int, lines: list[tuple[str, str]]) -> dict[str, Any]:
    old = sum(kind in ("context", "deleted") for kind, _ in lines)
    new = sum(kind in ("context", "added") for kind, _ in lines)
    return {
        "descriptor": {
            "old_range": {"start": start, "length": old},
            "new_range": {"start": start, "length": new},
            "section": "",
        },
        "line_group": {"all_lines": [{"type": kind, "content": text} for kind, text in lines]},
    }


def change(path: str, *hunks: dict[str, Any]) -> dict[str, Any]:
    return {
        "header": {"file": {"path": path}, "misc_line": None},
        "is_binary_file": False,
        "minus_file": {"path": f"a/{path}"},
        "plus_file": {"path": f"b/{path}"},
        "hunks": list(hunks),
    }


COMMIT = {
    "file_diffs": [
        change(
            "pkg/target.py",
            hunk(
                4,
                [
                    ("context", "def double(number):"),
                    ("deleted", "    return number + 1"),
                    ("added", "    return number * 2"),
                ],
            ),
            hunk(
                9, [("deleted", "    return number / 2"), ("added", "    # whole"), ("added", "    return number // 2")]
            ),
        ),
        change("pkg/more.py", hunk(0, [("added", "MORE = 1")])),
        change("tests/test_target.py", hunk(1, [("added", "assert False")])),
        change("CHANGES.rst", hunk(1, [("added", "Repaired.")])),
    ]
}


def row(number: int, **changed: object) -> dict[str, Any]:
    commit = hashlib.sha1(str(number).encode()).hexdigest()
    return {
        "repo_name": "numbers",
        "docker_image": "repository:1",
        "commit_hash": commit,
        "parsed_commit_content": json.dumps(COMMIT),
        "execution_result_content": json.dumps({"test_file_names": ["test_1.py"], "test_file_codes": [TESTS]}),
        "modified_files": ["pkg/target.py"],
        "modified_entity_summaries": [],
        "relevant_files": ["pkg/target.py"],
        "num_non_test_files": 1,
        "num_non_test_func_methods": 2,
        "num_non_test_lines": 3,
        "prompt": "",
        "problem_statement": "[ISSUE]\ndouble(4) is 5\n[/ISSUE]",
        "expected_output_json": json.dumps(EXPECTED),
        **changed,
    }


def folder_of(place: Path, rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> str:
    place.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), place / "train-00000-of-00001.parquet")
    return str(place)
