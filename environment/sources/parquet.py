"""Read mails and questions from parquet files with the columns of two public datasets.

They are `corbt/enron-emails` and `corbt/enron_emails_sample_questions` on the Hugging Face Hub. A source is a Hub
dataset id, a local folder of parquet files, or one parquet file. Rows are streamed: memory does not grow with the data.
Empty fields, unreadable dates and a lone address where a list belongs are tolerated; a missing column is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from environment.errors import BadMail
from environment.models import Email
from environment.sources.addresses import addresses_of, sender_of
from environment.sources.mail_dates import parse_mail_date

_EMAIL_COLUMNS = ("message_id", "subject", "from", "to", "cc", "bcc", "date", "body")
_EMAIL_OPTIONAL = ("file_name",)
_QUESTION_COLUMNS = ("id", "question", "answer", "message_ids", "how_realistic", "inbox_address", "query_date")
_LABEL_COLUMNS = ("answer", "message_ids")
_EMPTY: dict[str, Any] = {"question": "", "answer": "", "message_ids": (), "inbox_address": "", "query_date": ""}
"""Values of empty fields. A row needs an id."""
_SPLITS = ("train", "test", "validation")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_ROWS_PER_BATCH = 512
_EPOCH = datetime(1970, 1, 1)


class Question(BaseModel):
    """A row of a question dataset, not yet checked against the mails."""

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)

    id: str
    question: str
    answer: str
    message_ids: tuple[str, ...]
    how_realistic: float = 1.0
    inbox_address: str
    query_date: str


class ParquetEmails(Iterable[Email]):
    """The mails of a source in order. `operator.length_hint` returns their number if that is cheap to find out."""

    def __init__(self, source: str | Path, split: str = "train") -> None:
        self._source = source
        self._split = split
        # A split is one of questions: no mail is left out for the name of its file.
        self._files = _parquet_files(Path(source)) if is_local(source) else []
        _check_columns(self._files, _EMAIL_COLUMNS)

    def __iter__(self) -> Iterator[Email]:
        return map(_email, _rows(self._source, self._files, self._split, _EMAIL_COLUMNS, _EMAIL_OPTIONAL))

    def __length_hint__(self) -> int:
        return _count_rows(self._files)


def parquet_emails(source: str | Path, split: str = "train") -> ParquetEmails:
    """Return the mails of a Hub dataset id, of all files of a local folder of parquet files, or of one parquet file.

    Raises BadMail if the source is missing, unreadable, has no parquet file or lacks a column: for local files at
    once, for the Hub when iteration starts.
    """
    return ParquetEmails(source, split)


def parquet_questions(source: str | Path, split: str = "train", *, labelled: bool = True) -> Iterator[Question]:
    """Return the questions of a split of a source. Of local files, those count that name it. Only `labelled` questions need
    columns for answer and mails.

    Raises BadMail as `parquet_emails` does, and for a malformed row.
    """
    files = _files(source, split)
    optional = () if labelled else _LABEL_COLUMNS
    required = _question_columns(labelled)
    _check_columns(files, required)
    for number, row in enumerate(_rows(source, files, split, required, optional), start=1):
        # Empty fields are counted with their reason when the questions are chosen.
        given = _EMPTY | {name: value for name, value in row.items() if value is not None}
        if isinstance(given["query_date"], date):
            given["query_date"] = given["query_date"].isoformat()
        try:
            yield Question.model_validate(given)
        except ValidationError as error:
            problem = error.errors()[0]
            column = problem["loc"][0] if problem["loc"] else "row"
            raise BadMail(f"question {number} of {source}: column '{column}': {problem['msg'].lower()}") from error


def count_questions(source: str | Path, split: str = "train", *, labelled: bool = True) -> int | None:
    """Return the number of rows that `parquet_questions` reads, without reading them; `None` for a Hub id.

    Raises BadMail as it does, but for the Hub and for a malformed row.
    """
    if not is_local(source):
        return None
    files = _files(source, split)
    _check_columns(files, _question_columns(labelled))
    return _count_rows(files)


def has_split(source: str | Path, split: str) -> bool:
    """Return whether a source has separate rows for `split`. Raises BadMail when the source is missing."""
    if is_local(source):
        return bool(_files_of_split(_parquet_files(Path(source)), split))
    return split in _hub("get_dataset_split_names", str(source))


def is_local(source: str | Path) -> bool:
    """Return whether `source` is on disk; False for a Hub id. Raises BadMail when it is neither."""
    if str(source).strip() and Path(source).expanduser().exists():
        return True
    if _HUB_ID.fullmatch(str(source)):
        return False
    raise BadMail(
        f"'{source}' does not exist; set emails, train_questions or test_questions to a folder, a file or the id of a dataset "
        "on the Hugging Face Hub (owner/name)"
    )


def _parquet_files(path: Path) -> list[Path]:
    path = path.expanduser()
    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    if not files:
        raise BadMail(f"there is no .parquet file in {path}")
    return files


def _files_of_split(files: list[Path], split: str) -> list[Path]:
    """Return the split of a file by the Hub's rule: the first word of its name (`test-00000-of-00001.parquet`) or of
    its folder's.

    Files that name no split are training data.
    """

    def split_of(file: Path) -> str:
        names = (re.split(r"[-_.]", file.name.lower())[0], file.parent.name.lower())
        return next((name for name in names if name in _SPLITS), "train")

    return [file for file in files if split_of(file) == split]


def _files(source: str | Path, split: str) -> list[Path]:
    """Return the local files of `split`; an empty list for a Hub id."""
    if not is_local(source):
        return []
    files = _files_of_split(_parquet_files(Path(source)), split)
    if not files:
        raise BadMail(f"{source} has no '{split}' split: no parquet file in it is named {split}*.parquet")
    return files


def _open(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise BadMail(f"{file} is not a readable parquet file: {str(error).splitlines()[0]}") from error


def _count_rows(files: list[Path]) -> int:
    return sum(file.metadata.num_rows for file in map(_open, files))


def _question_columns(labelled: bool) -> tuple[str, ...]:
    return tuple(name for name in _QUESTION_COLUMNS if labelled or name not in _LABEL_COLUMNS)


def _check_columns(files: list[Path], columns: tuple[str, ...]) -> None:
    for file in files:
        _require(set(_open(file).schema_arrow.names), columns, file)


def _require(present: set[str], columns: tuple[str, ...], where: object) -> None:
    missing = [name for name in columns if name not in present]
    if missing:
        raise BadMail(f"{where} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}")


def _rows(
    source: str | Path, files: list[Path], split: str, columns: tuple[str, ...], optional: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    if not files:
        yield from _hub_rows(str(source), split, columns)
    for path in files:
        file = _open(path)
        wanted = [name for name in (*columns, *optional) if name in file.schema_arrow.names]
        try:
            for batch in file.iter_batches(_ROWS_PER_BATCH, columns=wanted):
                values = {name: _values(batch.column(name)) for name in batch.schema.names}
                for row in zip(*values.values(), strict=True):
                    yield dict(zip(values, row, strict=True))
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise BadMail(f"{path} cannot be read to its end: {str(error).splitlines()[0]}") from error


def _values(column: pa.Array) -> list[Any]:
    # Arrow's own conversion fails the whole batch for one date that Python cannot express.
    if pa.types.is_timestamp(column.type):
        microseconds = pc.cast(column, pa.timestamp("us"), safe=False).cast(pa.int64()).to_pylist()
        return [None if value is None else _moment(microseconds=value) for value in microseconds]
    if pa.types.is_date(column.type):
        days = pc.cast(column, pa.date32(), safe=False).cast(pa.int32()).to_pylist()
        moments = [None if value is None else _moment(days=value) for value in days]
        return [None if moment is None else moment.date() for moment in moments]
    return column.to_pylist()


def _moment(**since: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(**since)
    except OverflowError:
        return None


def _hub_rows(source: str, split: str, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    rows = iter(_hub("load_dataset", source, split=split, streaming=True))
    first = True
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except Exception as error:  # the Hub client raises errors of a dozen libraries
            raise unreachable(source, error) from error
        if first:
            _require(set(row), columns, source)
            first = False
        yield row


def _hub(function: str, source: str, **options: Any) -> Any:
    import datasets  # takes a second, and only the Hub needs it

    try:
        return getattr(datasets, function)(source, **options)
    except Exception as error:  # the Hub client raises errors of a dozen libraries
        raise unreachable(source, error) from error


def unreachable(source: str, error: Exception) -> BadMail:
    """Return the error of a source that is not on disk and that the Hub did not give."""
    why = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
    return BadMail(f"{source} is neither a folder here nor a dataset that could be fetched from the Hub ({why})")


def _email(row: dict[str, Any]) -> Email:
    sender = row["from"]
    name, address = sender_of(sender if isinstance(sender, str) else ", ".join(map(_text, sender or ())))
    return Email(
        message_id=_text(row["message_id"]),
        subject=_text(row["subject"]),
        from_address=address,
        from_name=name,
        to_addresses=_addresses(row["to"]),
        cc_addresses=_addresses(row["cc"]),
        bcc_addresses=_addresses(row["bcc"]),
        date=_date(row["date"]),
        body=_text(row["body"]),
        file_name=_text(row.get("file_name")),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _addresses(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return addresses_of(value)
    if not isinstance(value, Iterable):
        return ()
    listed = map(_text, value)
    return tuple(address for one in listed for address in (addresses_of(one) if "<" in one or ":" in one else (one,)))


def _date(value: object) -> datetime | None:
    if isinstance(value, str):
        try:
            value = parse_mail_date(value.strip())
        except BadMail:
            return None
    if not isinstance(value, datetime):
        # A day is read as it would be if it were text.
        return datetime.combine(value, time()) if isinstance(value, date) else None
    try:
        return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
    except OverflowError:
        return None
