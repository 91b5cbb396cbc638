"""Write questions as a parquet folder with the columns that `sources.parquet` reads."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from environment.errors import BadMail
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
    """Write `folder/train.parquet`. The folder appears when it is complete and replaces an existing one.

    Raise BadMail when the disk is full or the folder cannot be written.
    """
    partial = folder.with_name(f".{folder.name}.{time.time_ns()}")
    try:
        partial.mkdir(parents=True)
        rows = [question.model_dump() for question in questions]
        pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), partial / "train.parquet")
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(partial, folder)
    except OSError as error:
        raise BadMail(f"cannot write the questions to {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder
