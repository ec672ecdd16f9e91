"""CITATION.cff: it cites this version, and the papers that the README names."""

from __future__ import annotations

from importlib import metadata

import yaml

from tests.docs.documents import ROOT, text

CITATION = yaml.safe_load(text(ROOT / "CITATION.cff"))


def test_it_has_what_the_format_asks_for() -> None:
    assert {"cff-version", "message", "title", "authors"} <= CITATION.keys()
    assert CITATION["version"] == metadata.version("tandem-llm")
    assert "license" not in CITATION, "until the owner has chosen one"
    for paper in CITATION["references"]:
        assert {"type", "title", "authors"} <= paper.keys()
        assert all("family-names" in author for author in paper["authors"])


def test_it_names_the_papers_of_the_readme_and_their_authors() -> None:
    modes = text(ROOT / "README.md").split("## Modes and papers")[1].split("## ")[0]
    rows = [row.replace("**", "") for row in modes.splitlines() if "**" in row]
    assert len(rows) == len(CITATION["references"])
    for paper in CITATION["references"]:
        (row,) = (row for row in rows if paper["title"] in row)
        names = [" ".join([a.get("given-names", ""), a["family-names"]]).strip() for a in paper["authors"]]
        assert ", ".join(names) in row
