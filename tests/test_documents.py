"""Links between the documents lead somewhere, and the lab notebook's table lists every entry once."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "models").rglob("*.md")})


def without_code(document: Path) -> str:
    return re.sub(r"(?ms)^```.*?^```", "", document.read_text(encoding="utf-8"))


def anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(document: Path) -> list[str]:
    return [anchor(heading) for heading in re.findall(r"(?m)^#+ (.*)$", without_code(document))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(document: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(document)):
        if re.match(r"https?:", target):
            continue
        path, _, heading = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if not file.exists() or (heading and heading not in anchors(file)):
            broken.append(target)
    assert not broken


def test_the_table_of_experiments_lists_every_entry_once_and_newest_first() -> None:
    notebook = (ROOT / "docs" / "lab_notebook.md").read_text(encoding="utf-8")
    table = re.findall(r"(?m)^\| (\d{4}-\d\d-\d\d)[^|]* \| \[.*\]\(notebook/(\S+)\) \|", notebook)
    entries = [
        f"{week.name}#{anchor(heading)}"
        for week in sorted((ROOT / "docs" / "notebook").glob("*.md"), reverse=True)
        for heading in re.findall(r"(?m)^## (.*)$", without_code(week))
    ]
    assert [target for _, target in table] == entries
    assert all(target.split("#")[1].startswith(day) for day, target in table)
