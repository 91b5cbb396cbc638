"""Small files of the kinds that people attach."""

from __future__ import annotations

import io
import zipfile

_TYPES = "http://schemas.openxmlformats.org/package/2006/content-types"
_RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
_DOCUMENT = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_MAIN = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"


def docx(text: str, *, padding: int = 0) -> bytes:
    """Return a document of one paragraph. `padding` bytes of blanks compress to nearly nothing."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "[Content_Types].xml",
            f'<Types xmlns="{_TYPES}"><Default Extension="rels" '
            f'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
            f'<Override PartName="/word/document.xml" ContentType="{_MAIN}"/></Types>',
        )
        archive.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{_RELATIONS}"><Relationship Id="r" Type="{_DOCUMENT}" Target="word/document.xml"/>'
            "</Relationships>",
        )
        paragraph = f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"
        archive.writestr(
            "word/document.xml",
            f'<w:document xmlns:w="{_WORD}"><w:body>{paragraph}{" " * padding}</w:body></w:document>',
        )
    return written.getvalue()


def pdf(text: str) -> bytes:
    """Return a page with one line. It has no table of its objects, which readers rebuild."""
    stream = f"BT /F1 18 Tf 20 100 Td ({text}) Tj ET"
    font = "<</Font<</F1<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>"
    return (
        "%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj "
        f"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 200]/Resources{font}/Contents 4 0 R>>endobj "
        f"4 0 obj<</Length {len(stream)}>>stream\n{stream}\nendstream endobj\ntrailer<</Root 1 0 R>>"
    ).encode()
