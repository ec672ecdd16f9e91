"""The page of results and its pictures are what the command makes of the figures."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from PIL import Image
from pydantic import ValidationError

from tandem.benchmarks.results import DOCS, Row, Section, Table, distance, draw, load, shown, write

RESULTS = load()
SECTIONS = [pytest.param(section, id=section.file) for section in RESULTS.sections]


def table(*rows: Row, beside: str = "paper", spread: str = "") -> Table:
    return Table(
        title="Speed",
        commit="`abc`",
        date=date(2026, 11, 29),
        machine="a phone",
        command="hardware",
        seeds="7",
        kind="simulated",
        form="{:+.0f} %",
        beside=beside,  # type: ignore[arg-type]
        spread=spread,
        rows=rows,
    )


def section(*tables: Table) -> Section:
    return Section(title="One", text="", picture="P", axis="%", line=0, tables=tables, missed=())


def test_the_page_is_what_the_command_makes() -> None:
    assert (DOCS / "results.md").read_text(encoding="utf-8") == RESULTS.page(), (
        "python -m tandem.benchmarks.results"
    )


@pytest.mark.parametrize("section", SECTIONS)
def test_a_picture_is_of_the_figures_that_are_there(section: Section) -> None:
    with Image.open(DOCS / "pictures" / section.file) as picture:
        assert picture.info["Description"] == section.digest(), "python -m tandem.benchmarks.results"


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_draws_figures_of_one_unit_and_says_what_is_not_reached(section: Section) -> None:
    units = {(row.form or table.form)[-1] for table in section.tables for row in table.rows if row.plot}
    assert len(units) == 1
    assert section.missed


def test_pictures_have_names_of_their_own() -> None:
    assert len({section.file for section in RESULTS.sections}) == len(RESULTS.sections)


def test_a_row_has_a_figure_the_papers_and_the_distance() -> None:
    one = table(Row(what="TTFT", of="chats", ours=-28, beside=-41.5), Row(what="TBT", of="chats", ours=3))
    head, _, *rows = list(one.lines())[2:]
    assert head == "| measured | workload | command | seeds | ours | paper's | distance | kind |"
    assert "| TTFT | chats |" in rows[0]
    assert "| 7 | −28 % | −42 % | +13.5 pp | simulated |" in rows[0]
    assert "| 7 | +3 % | – | – | simulated |" in rows[1]


def test_a_range_and_a_spread_have_two_columns() -> None:
    one = table(
        Row(what="all", of="cells", ours=(1, 9), beside=(2, 4), spread=(0, 12), kind="live"),
        beside="goal",
        spread="s",
    )
    line, _, head, _, row, _ = one.lines()
    assert line == "**Speed.** 2026-11-29, `abc`, on a phone. “Least” and “most” are s."
    assert [cell.strip() for cell in head.split("|")[5:-1]] == [
        *(f"{which}, {end}" for which in ("ours", "goal", "distance") for end in ("least", "most")),
        *("least", "most", "kind"),
    ]
    assert row.endswith("| +1 % | +9 % | +2 % | +4 % | −1.0 pp | +5.0 pp | +0 % | +12 % | live |")


@pytest.mark.parametrize(
    ("form", "ours", "theirs", "wanted"),
    [
        ("{:.1f} %", 72.3, 83.6, "−11.3 pp"),
        ("{:.2f} ×", 0.9, 1.2, "−25 %"),
        ("{:.0f} ms", 15, 5, "+200 %"),
        ("{:.0f}", 2, 0, "+2"),
    ],
)
def test_distances(form: str, ours: float, theirs: float, wanted: str) -> None:
    assert distance(form, ours, theirs) == wanted


def test_minus_signs_are_true_ones() -> None:
    assert shown("{:+.1f} ×", -0.25) == "−0.2 ×"


def test_another_figure_is_another_picture() -> None:
    one, other = (section(table(Row(what="w", of="o", ours=x, plot="p"))) for x in (1, 2))
    assert one.digest() != other.digest()


def test_a_picture_has_a_point_for_each_figure() -> None:
    drawn = section(
        table(
            Row(what="w", of="o", ours=4, beside=6, spread=(3, 5), plot="first"),
            Row(what="w", of="o", ours=(1, 2), plot="second"),
            Row(what="w", of="o", ours=99),
        )
    )
    (axes,) = draw(drawn).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["second", "first"]
    xs = [tuple(line.get_xdata()) for line in axes.lines]  # type: ignore[arg-type]
    assert xs == [(4, 4), (3, 5), (6, 6), (1, 2), (0, 0)]


def test_a_misspelt_key_is_refused() -> None:
    with pytest.raises(ValidationError, match="workload"):
        Row(what="w", of="o", ours=1, workload="x")  # type: ignore[call-arg]


def test_without_a_checkout_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="made in a checkout"):
        write(tmp_path)
