"""Results: docs/results.md and its pictures, made of docs/results.yaml, where every published figure stands once.

    python -m tandem.benchmarks.results

Distances to the paper's figures, or to goals, are computed here. The rows say which figures are drawn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from tandem.benchmarks.catalogue import BENCHMARKS
from tandem.benchmarks.paths import ROOT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOCS = ROOT / "docs"
COMMAND = "tandem benchmark "
Range = tuple[float, float]
THEIRS = {"paper": "paper's", "goal": "goal"}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Row(_Strict):
    """One figure, or the least and the most of several.

    what: was measured.
    of: workload.
    beside: the paper's figure, or the goal; None if there is none.
    spread: its two ends; None if it was not recorded.
    plot: label in the section's picture; None: it is not drawn.
    series: which of the points at that label it is.
    command, seeds, kind, form: in place of the table's; None: as there.
    """

    what: str
    of: str
    ours: float | Range
    beside: float | Range | None = None
    spread: Range | None = None
    plot: str | None = None
    series: str = "Tandem"
    command: str | None = None
    seeds: str | None = None
    kind: str | None = None
    form: str | None = None


class Table(_Strict):
    """Figures of one run.

    commit: of the run, or what is known of it.
    machine: that it ran on.
    form: of a figure, as Python's `str.format` has it.
    beside: what ours stand beside.
    spread: what the ends of the rows' spreads are; empty if none was recorded.
    note: what has to be known besides.
    """

    title: str
    commit: str
    date: date
    machine: str
    command: str
    seeds: str
    kind: Literal["live", "emulated", "simulated"]
    form: str
    beside: Literal["paper", "goal"] = "paper"
    spread: str = ""
    note: str = ""
    rows: tuple[Row, ...]

    def lines(self) -> Iterator[str]:
        """Yield the table in Markdown, below a line that says which run it is of."""
        spread = f"“Least” and “most” are {self.spread}." if self.spread else "Spread: not recorded."
        run = f"{self.date}, {self.commit}, on {self.machine}."
        yield from (" ".join(filter(None, (f"**{self.title}.**", run, spread, self.note))), "")
        rows = [self._cells(row) for row in self.rows]
        heads = [head for head in rows[0] if any(row[head] for row in rows)]
        yield from (f"| {' | '.join(heads)} |", "|" + "---|" * len(heads))
        yield from (f"| {' | '.join(row[head] or '–' for head in heads)} |" for row in rows)
        yield ""

    def _cells(self, row: Row) -> dict[str, str]:
        form, command = row.form or self.form, row.command or self.command
        tandem = COMMAND if command.split()[0] in BENCHMARKS else ""
        cells = {
            "measured": row.what,
            "workload": row.of,
            "command": f"`{tandem}{command}`",
            "seeds": row.seeds or self.seeds,
        }
        ours, beside = ends(row.ours), ends(row.beside) if row.beside is not None else None
        places = {0: ""} if isinstance(row.ours, float) else {0: ", least", 1: ", most"}
        cells |= {f"ours{end}": shown(form, ours[i]) for i, end in places.items()}
        cells |= {
            f"{THEIRS[self.beside]}{end}": shown(form, beside[i]) if beside else ""
            for i, end in places.items()
        }
        cells |= {
            f"distance{end}": distance(form, ours[i], beside[i]) if beside else ""
            for i, end in places.items()
        }
        low, high = (shown(form, end) for end in row.spread) if row.spread else ("", "")
        return cells | {"least": low, "most": high, "kind": row.kind or self.kind}


class Section(_Strict):
    """A paper, or a part of the system.

    text: what was asked, what came out, and what is not reached.
    picture: title of the plot; axis: what its horizontal axis shows; line: where it has a vertical line.
    missed: what is not reached, a sentence each.
    """

    title: str
    text: str
    picture: str
    axis: str
    line: float
    tables: tuple[Table, ...]
    missed: tuple[str, ...]

    @property
    def file(self) -> str:
        """Return the picture's name."""
        return f"results-{self.title.split()[0].strip(':,').lower()}.png"

    def drawn(self) -> list[tuple[str, Row]]:
        """Return the rows that the picture shows, with what they stand beside."""
        return [(table.beside, row) for table in self.tables for row in table.rows if row.plot]

    def digest(self) -> str:
        """Return what tells this picture from one of other figures."""
        return hashlib.sha256(repr((self.picture, self.axis, self.line, self.drawn())).encode()).hexdigest()

    def lines(self) -> Iterator[str]:
        """Yield the section in Markdown."""
        yield from (
            f"## {self.title}",
            "",
            self.text.strip(),
            "",
            f"![{self.picture}](pictures/{self.file})",
            "",
        )
        for table in self.tables:
            yield from table.lines()
        yield from ("What is not reached:", "", *(f"- {sentence}" for sentence in self.missed), "")


class Results(_Strict):
    """Everything on the page."""

    intro: str
    sections: tuple[Section, ...]

    def page(self) -> str:
        """Return the page in Markdown."""
        lines = (line for section in self.sections for line in section.lines())
        return "\n".join([self.intro.strip(), "", *lines]).rstrip() + "\n"


def ends(value: float | Range) -> Range:
    """Return the two ends of a range, of a figure itself twice."""
    return (value, value) if isinstance(value, float) else value


def shown(form: str, value: float) -> str:
    """Return a figure in a form such as `{:+.0f} %`, with a true minus sign."""
    return form.format(value).replace("-", "−")


def distance(form: str, ours: float, theirs: float) -> str:
    """Return how far ours lies above theirs: in percentage points (pp) of shares, relative of all else but zeros."""
    if "%" in form:
        return shown("{:+.1f} pp", ours - theirs)
    return shown("{:+.0f} %", 100 * (ours / theirs - 1)) if theirs else shown("{:+g}", ours)


def draw(section: Section) -> Figure:
    """Draw a section's rows: ours as points, ranges as bars, spreads as lines; the paper's, and goals, hollow."""
    from matplotlib.figure import Figure

    rows = section.drawn()
    labels = list(dict.fromkeys(row.plot for _, row in rows))[::-1]
    series = list(dict.fromkeys(row.series for _, row in rows))
    figure = Figure(figsize=(7.5, 1.4 + len(labels) * (0.15 + 0.17 * len(series))), layout="constrained")
    axes = figure.subplots()
    for beside, row in rows:
        k, line = series.index(row.series), "" if isinstance(row.ours, float) else "-"
        y = labels.index(row.plot) + ((len(series) - 1) / 2 - k) * 0.7 / len(series)
        axes.plot(
            ends(row.ours), [y, y], ls=line, lw=6, marker="" if line else "o", c=f"C{k}", label=row.series
        )
        if row.spread:
            axes.plot(row.spread, [y, y], color=f"C{k}", lw=1.5)
        if row.beside is not None:
            name = "the paper" if beside == "paper" else beside
            axes.plot(ends(row.beside), [y, y], ls=line, marker="D", ms=5, c="black", mfc="white", label=name)
    axes.axvline(section.line, color="grey", lw=1)
    axes.set(
        xlabel=section.axis, yticks=range(len(labels)), yticklabels=labels, ylim=(-0.6, len(labels) - 0.4)
    )
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(section.picture, fontsize="medium")
    legend = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    figure.legend(legend.values(), legend, loc="outside lower center", ncols=len(legend), frameon=False)
    return figure


def load(docs: Path = DOCS) -> Results:
    """Return the results of a folder of documents. Raises SystemExit if they are not there."""
    path = docs / "results.yaml"
    if not path.exists():
        raise SystemExit(f"{path} is not here: the page is made in a checkout")
    return Results.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def write(docs: Path = DOCS) -> None:
    """Write the page and its pictures."""
    results = load(docs)
    (docs / "results.md").write_text(results.page(), encoding="utf-8")
    for section in results.sections:
        where = docs / "pictures" / section.file
        draw(section).savefig(where, dpi=110, metadata={"Description": section.digest()})


if __name__ == "__main__":
    write()
