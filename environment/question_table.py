"""Questions as a folder of parquet, in the columns that `sources.parquet` reads."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from environment.errors import BadInput
from environment.sources.parquet import Question

_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("question", pa.string()),
        ("answer", pa.string()),
        ("message_ids", pa.list_(pa.string())),
        ("how_realistic", pa.float64()),
        ("inbox_address", pa.string()),
        ("query_date", pa.string()),
    ]
)


def write_question_table(questions: Sequence[Question], folder: Path) -> Path:
    """Writes `folder/train.parquet`. The folder appears when it is complete; one that is there already is replaced.

    Raises BadInput when the disk is full or the folder cannot be written.
    """
    beside = folder.with_name(f".{folder.name}.{time.time_ns()}")
    try:
        beside.mkdir(parents=True)
        rows = [question.model_dump() for question in questions]
        pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), beside / "train.parquet")
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(beside, folder)
    except OSError as error:
        raise BadInput(f"cannot write the questions to {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder
