"""The table of an answer's stats in the documentation is that of the models."""

from tandem.app.api.stats.table import DOCS, updated
from tandem.deployments.docstrings import meanings
from tandem.deployments.modes.sketch import mode as sketch
from tandem.policies.sketch.sketch_length import Reason


def test_the_documentation_has_the_same() -> None:
    """Otherwise: python -m tandem.app.api.stats.table."""
    page = DOCS.read_text(encoding="utf-8")
    assert "| `modes.speculative.rounds` | integer | " in page
    assert updated(page) == page


def test_every_reason_for_an_answer_in_full_is_named() -> None:
    reasons = [reason.name.lower() for reason in Reason]
    reasons += [sketch.INDIVISIBLE, sketch.NO_ROOM, sketch.ENDLESS, sketch.NO_LIST]
    assert all(f"`{reason}`" in meanings(sketch.Sketched)["in_full"] for reason in reasons)
