"""Materializer of the mail database: the SQLite file, opened in place where possible."""

from __future__ import annotations

import json
import os
from typing import Any, ClassVar

from zenml.enums import ArtifactType
from zenml.materializers.base_materializer import BaseMaterializer

from environment.email_db import MailDatabase
from materializers.local_files import DamagedArtifact, local_folder, put_file

DATABASE_FILE = "mails.sqlite"
FILE_RECORD = "mails.sqlite.json"


class MailDatabaseMaterializer(BaseMaterializer):
    """Store a `MailDatabase` as its SQLite file, with a record of SHA-256 and size.

    Databases reach gigabytes, so a load opens the file of a local artifact store in place and downloads it once otherwise.
    """

    ASSOCIATED_TYPES: ClassVar[tuple[type[Any], ...]] = (MailDatabase,)
    ASSOCIATED_ARTIFACT_TYPE: ClassVar[ArtifactType] = ArtifactType.DATA

    def save(self, data: MailDatabase) -> None:
        """Store the file. Raise `DamagedArtifact` if it is not the one that was opened any more."""
        if MailDatabase(data.path).content_checksum != data.content_checksum:
            raise DamagedArtifact(f"{data.path} was replaced while it was stored: run the same command again")
        digest, size = put_file(self.artifact_store, data.path, os.path.join(self.uri, DATABASE_FILE))
        # Written last: an artifact without the record does not load, so an interrupted save is never taken for complete.
        with self.artifact_store.open(os.path.join(self.uri, FILE_RECORD), "w") as file:
            file.write(json.dumps({"sha256": digest, "bytes": size}))

    def load(self, data_type: type[Any]) -> MailDatabase:
        """Open the database. Raise `DamagedArtifact` when the file is not the stored one, which is read only after a download."""
        with self.artifact_store.open(os.path.join(self.uri, FILE_RECORD), "r") as file:
            record = json.loads(file.read())
        folder = local_folder(self.artifact_store, self.uri, {DATABASE_FILE: record["sha256"]})
        if (found := (folder / DATABASE_FILE).stat().st_size) != record["bytes"]:
            raise DamagedArtifact(f"{folder / DATABASE_FILE} has {found:,} bytes, {record['bytes']:,} were stored")
        return MailDatabase(folder / DATABASE_FILE)

    def extract_metadata(self, data: MailDatabase) -> dict[str, Any]:
        return {"mails": data.email_count(), "inboxes": len(data.inboxes()), "checksum": data.content_checksum}

    def compute_content_hash(self, data: MailDatabase) -> str | None:
        return data.content_checksum
