"""Links between the documents lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.documents import DOCUMENTS, ROOT, name, text


def links(document: Path) -> list[str]:
    """Return its links to files of the repository."""
    found = re.findall(r"\]\(([^)\s]+)\)", text(document))
    return [link for link in found if not re.match(r"https?:", link)]


def anchors(document: Path) -> set[str]:
    """Return GitHub's anchors of its headings."""
    headings = re.findall(r"^#+ (.*)$", text(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(document: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (document.parent / path).resolve() if path else document
    return (
        not target.exists()
        or not target.is_relative_to(ROOT)
        or bool(anchor and anchor not in anchors(target))
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_link_leads_somewhere(document: Path) -> None:
    assert [link for link in links(document) if broken(document, link)] == []


def test_a_broken_one_is_found() -> None:
    document = ROOT / "docs" / "modes.md"
    assert links(document)
    for link in ("nothing.md", "operations.md#nothing", "#nothing", "../../elsewhere"):
        assert broken(document, link), link


def test_pictures_are_small_and_shown() -> None:
    shown = {(document.parent / link).resolve() for document in DOCUMENTS for link in links(document)}
    pictures = list((ROOT / "docs" / "pictures").iterdir())
    assert pictures
    for picture in pictures:
        assert picture in shown
        assert picture.stat().st_size < 150_000


def test_every_document_can_be_reached_from_the_readme() -> None:
    reached, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        document = waiting.pop()
        if document not in reached and document.suffix == ".md":
            reached.add(document)
            waiting += [(document.parent / link.partition("#")[0]).resolve() for link in links(document)]
    assert set(DOCUMENTS) <= reached
