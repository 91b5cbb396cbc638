"""Reads the text of files with kreuzberg: the program of a process of its own, which imports nothing of this project.

Its limits are its arguments: bytes of memory, bytes that a file may unpack to, characters of a text. It reads a line of JSON (`kind`,
`size`) and that many bytes, and answers with a line of JSON (`text`, or `problem`), until its input ends.
"""

from __future__ import annotations

import contextlib
import io
import json
import resource
import sys
import zipfile

from kreuzberg import ExtractionConfig, extract_bytes_sync

_BLANK_PDF = b"""%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>endobj
trailer<</Root 1 0 R>>
"""


def main(memory: int, unpacked: int, chars: int) -> None:
    config = ExtractionConfig(disable_ocr=True, use_cache=False)
    # For its first PDF kreuzberg writes its library to the folder for temporary files. Under the limits it could not, and would
    # return an empty text without an error.
    with contextlib.suppress(Exception):
        extract_bytes_sync(_BLANK_PDF, "application/pdf", config)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while line := sys.stdin.buffer.readline():
        asked = json.loads(line)
        content = sys.stdin.buffer.read(asked["size"])
        answer = {"problem": "expands too far"}
        if unpacked_size(content) <= unpacked:
            try:
                answer = {"text": extract_bytes_sync(content, asked["kind"], config).content[:chars]}
            except MemoryError:
                answer = {"problem": "needs too much memory"}
            except Exception:  # the file may raise anything, and the next one is read
                answer = {"problem": "unreadable"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def unpacked_size(content: bytes) -> int:
    """Return what an office file, which is a zip archive, says it unpacks to; 0 for others."""
    if not content.startswith(b"PK"):
        return 0
    try:
        return sum(member.file_size for member in zipfile.ZipFile(io.BytesIO(content)).infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return 0  # kreuzberg says what is wrong with it


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
