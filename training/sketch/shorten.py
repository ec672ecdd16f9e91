"""Shorter sketches to learn from: a note loses words without which the expander says the same, wherever it stands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

from tandem.policies.sketch.rouge import rouge1
from tandem.training.family.encyclopedia.items import Item
from tandem.training.family.expand import expand
from tandem.training.family.prompts import expansion_prompt
from tandem.training.family.scoring import tells
from tandem.training.sketch.score import Expander

SIGHTS = 4
"""Sketches, at most, in which a shorter note is tried."""
CLOSE = 0.01
"""ROUGE-1 that a note's sentences may lose, as true ones are worded by chance."""


class Noted(NamedTuple):
    """A note in sketches for questions of one kind, shortened everywhere or nowhere."""

    kind: str
    note: str


@dataclass(frozen=True)
class Worth:
    """Quality of an expander's sentences from a note.

    stated: sentences that state the fact.
    rouge: mean ROUGE-1 against the true sentences.
    """

    stated: int
    rouge: float


def shorten(items: Sequence[Item], expander: Expander, words: int, rng: Random) -> list[Item]:
    """The items with shorter notes. In each of `words` rounds a note may lose a word if facts and wording stay in all
    sketches in which that is tried, the other notes being whole. Notes that fail among shortened ones are whole again.
    """
    tried = {noted: rng.sample(found, min(SIGHTS, len(found))) for noted, found in _places(items).items()}
    best = {noted: noted.note for noted in tried}
    worth = _try(items, expander, tried, ((noted, noted.note) for noted in tried))
    shrinking = list(tried)
    for _ in range(words):
        shorter = {noted: _without_a_word(best[noted]) for noted in shrinking}
        worth |= _try(
            items, expander, tried, ((noted, note) for noted, notes in shorter.items() for note in notes)
        )
        shrinking = []
        for noted, notes in shorter.items():
            kept = [note for note in notes if as_good(worth[noted, note], worth[noted, best[noted]])]
            if kept:
                best[noted] = min(
                    kept, key=lambda note: (-worth[noted, note].stated, expander.tokens([note]))
                )
                shrinking.append(noted)
    return _restored(items, best, expander)


def as_good(shorter: Worth, before: Worth) -> bool:
    return shorter.stated >= before.stated and shorter.rouge >= before.rouge - CLOSE


def _places(items: Sequence[Item]) -> dict[Noted, list[tuple[int, int]]]:
    """Item and line."""
    places: dict[Noted, list[tuple[int, int]]] = defaultdict(list)
    for i, item in enumerate(items):
        for j, note in enumerate(item.notes):
            places[Noted(item.kind, note)].append((i, j))
    return places


def _try(
    items: Sequence[Item],
    expander: Expander,
    places: Mapping[Noted, Sequence[tuple[int, int]]],
    candidates: Iterable[tuple[Noted, str]],
) -> dict[tuple[Noted, str], Worth]:
    """Return the worth of candidates, by note and its replacement."""
    tries = [(noted, note, i, j) for noted, note in candidates for i, j in places[noted]]
    prompts = []
    for _, note, i, j in tries:
        notes = items[i].notes
        prompts.append(expansion_prompt(items[i].question, [*notes[:j], note, *notes[j + 1 :]], note))
    found: dict[tuple[Noted, str], list[tuple[bool, float]]] = defaultdict(list)
    for (noted, note, i, j), sentence in zip(tries, expander.write(prompts), strict=True):
        line = items[i].lines[j]
        found[noted, note].append((tells(sentence, items[i], line), rouge1(sentence, line.sentence)))
    return {
        key: Worth(sum(stated for stated, _ in each), sum(rouge for _, rouge in each) / len(each))
        for key, each in found.items()
    }


def _restored(items: Sequence[Item], best: Mapping[Noted, str], expander: Expander) -> list[Item]:
    """Return the items with the shorter notes, except those that together state fewer facts than the whole ones. A note
    that is whole again may change its neighbours' sentences, so this is repeated until no fact is lost."""
    noted = [[Noted(item.kind, note) for note in item.notes] for item in items]
    before, kept = _told(items, [item.notes for item in items], expander), dict(best)
    while True:
        sketches = [[kept[each] for each in row] for row in noted]
        gained: dict[Noted, int] = defaultdict(int)
        for row, had, has in zip(noted, before, _told(items, sketches, expander), strict=True):
            for each, fewer, more in zip(row, had, has, strict=True):
                gained[each] += more - fewer
        lost = {each for each, facts in gained.items() if facts < 0}
        shorter = {each for each in lost if kept[each] != each.note}
        if not shorter:  # what is lost is lost by its neighbours
            near = {each for row in noted if lost & set(row) for each in row}
            shorter = {each for each in near if kept[each] != each.note}
        if not shorter:
            break
        kept |= {each: each.note for each in shorter}
    return [
        replace(
            item, lines=tuple(replace(line, note=note) for line, note in zip(item.lines, notes, strict=True))
        )
        for item, notes in zip(items, sketches, strict=True)
    ]


def _told(items: Sequence[Item], sketches: Sequence[Sequence[str]], expander: Expander) -> list[list[bool]]:
    """Return for each line of each item whether its sentence from that sketch states its fact."""
    written = expand(expander.write, [item.question for item in items], sketches)
    return [
        [tells(sentence, item, line) for line, sentence in zip(item.lines, sentences, strict=True)]
        for item, sentences in zip(items, written, strict=True)
    ]


def _without_a_word(note: str) -> list[str]:
    words = note.split()
    return [" ".join(words[:i] + words[i + 1 :]) for i in range(len(words))] if len(words) > 1 else []
