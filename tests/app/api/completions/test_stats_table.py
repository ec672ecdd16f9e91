"""The table of an answer's stats in the documentation is that of the models."""

from tandem.app.api.completions.stats_table import DOCS, updated


def test_the_documentation_has_the_same() -> None:
    """Otherwise: python -m tandem.app.api.completions.stats_table."""
    page = DOCS.read_text(encoding="utf-8")
    assert "| `modes.speculative.rounds` | integer | " in page
    assert updated(page) == page
