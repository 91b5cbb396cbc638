"""Materializer of lists of pydantic values: one JSON Lines file.

ZenML's own materializer for lists stores every element in a folder of its own.
"""

from __future__ import annotations

import json
import os
from typing import Any, ClassVar

from pydantic import BaseModel
from zenml.enums import ArtifactType
from zenml.materializers.base_materializer import BaseMaterializer
from zenml.utils import source_utils

from materializers.local_files import DamagedArtifact

LINES_FILE = "values.jsonl"


class JsonLinesMaterializer(BaseMaterializer):
    """Store `list[SomeModel]`, all of one class: the first line names the class, each other line is one value.

    Name it in `@step(output_materializers={"<output>": JsonLinesMaterializer})`; it is not registered for all lists.
    """

    ASSOCIATED_TYPES: ClassVar[tuple[type[Any], ...]] = (list,)
    ASSOCIATED_ARTIFACT_TYPE: ClassVar[ArtifactType] = ArtifactType.DATA
    SKIP_REGISTRATION: ClassVar[bool] = True

    def save(self, data: list[BaseModel]) -> None:
        """Write the list. Raise `TypeError` when the values are not pydantic models of one class."""
        classes = {type(value) for value in data}
        if len(classes) > 1 or not all(issubclass(cls, BaseModel) for cls in classes):
            raise TypeError(f"expected pydantic values of one class, got {sorted(cls.__name__ for cls in classes)}")
        source = source_utils.resolve(classes.pop()).import_path if classes else None
        with self.artifact_store.open(os.path.join(self.uri, LINES_FILE), "w") as file:
            file.write(json.dumps({"class": source, "count": len(data)}) + "\n")
            for value in data:
                file.write(_line(value.model_dump(mode="json")))

    def load(self, data_type: type[Any]) -> list[BaseModel]:
        """Read the list. Raise `DamagedArtifact` when the file is not what was stored."""
        with self.artifact_store.open(os.path.join(self.uri, LINES_FILE), "r") as file:
            content = file.read()
        try:
            head, *lines = content.splitlines()
            described = json.loads(head)
            count = described["count"]
            model = source_utils.load(described["class"]) if lines else BaseModel
            values = [model.model_validate_json(line) for line in lines]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedArtifact(f"{self.uri} is damaged: run the pipeline that made it with --no-cache") from error
        if len(values) != count:
            raise DamagedArtifact(
                f"{self.uri} is damaged, it holds {len(values)} of {count} values: run the pipeline that made it with --no-cache"
            )
        return values

    def extract_metadata(self, data: list[BaseModel]) -> dict[str, Any]:
        return {"count": len(data)}


def _line(value: dict[str, Any]) -> str:
    """Return a value as one line of ASCII, because the store opens text files in the machine's encoding.

    Half of a surrogate pair becomes a question mark: pydantic would write it, and not read it again.
    """
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        value = json.loads(text.encode("utf-8", "replace"))
    return json.dumps(value) + "\n"
