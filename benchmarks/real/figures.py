"""Figures of a run's answers: by mode and set, and over all of them beside the cloud alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean, median

import numpy as np

from tandem.benchmarks import report
from tandem.benchmarks.real.results import Answer

CLOUD, AGAIN, DEVICE = "cloud", "cloud, again", "device"
HALF = "race, 0.5"
COLUMNS = (
    "set",
    "mode",
    "answers",
    "score",
    "tokens as the cloud's",
    "tokens/s",
    "× cloud",
    "TTFT P50 s",
    "P99 s",
    "µ$",
)


class Compared:
    """Answers beside those of one mode, the cloud's, to the same tasks."""

    def __init__(self, answers: Iterable[Answer], beside: str = CLOUD) -> None:
        self._by_case: dict[tuple[str, str], list[Answer]] = {}
        for answer in answers:
            self._by_case.setdefault((answer.set, answer.mode), []).append(answer)
        self._cloud = {
            (a.set, a.task): a for (_, mode), found in self._by_case.items() if mode == beside for a in found
        }

    def rows(self) -> list[list[str]]:
        """Return the table's rows, in the order of COLUMNS."""
        return [[of_set, mode, *self._row(of_set, mode)] for of_set, mode in self._by_case]

    def _row(self, of_set: str, mode: str) -> list[str]:
        answers = self._by_case[of_set, mode]
        ratios = self.ratios(of_set, mode)
        scores = [a.score for a in answers if a.score is not None]
        first_s = [a.first_s for a in answers]
        return [
            str(len(answers)),
            f"{mean(scores):.0%}" if scores else "–",
            f"{same_tokens(self.pairs(of_set, mode)):.1%}" if ratios else "–",
            report.spread([a.tokens_per_s for a in answers]),
            report.spread(ratios) if ratios else "–",
            f"{median(first_s):.3f}",
            f"{np.percentile(first_s, 99):.3f}",
            f"{1e6 * mean(a.usd for a in answers):.1f}",
        ]

    def ratios(self, of_set: str, mode: str) -> list[float]:
        """Return the speed of each answer over the cloud's to the same task, both over as many tokens as that has."""
        return [b.last_s / a.seconds(b.tokens) for a, b in self.pairs(of_set, mode)]

    def pairs(self, of_set: str, mode: str) -> list[tuple[Answer, Answer]]:
        """Return the answers of a mode with the cloud's to the same tasks."""
        answers = self._by_case.get((of_set, mode), [])
        return [(a, self._cloud[a.set, a.task]) for a in answers if (a.set, a.task) in self._cloud]

    def figures(self, lossless: Sequence[str]) -> dict[str, float]:
        """Return the figures of the benchmark; nan where there are no answers for one. lossless: modes that promise
        the cloud's own text."""
        cases = [case for case in self._by_case if self.pairs(*case)]
        alike = [pair for of_set, mode in cases if mode in lossless for pair in self.pairs(of_set, mode)]
        medians = {
            (s, mode): median(self.ratios(s, mode)) for s, mode in cases if mode not in (CLOUD, AGAIN, DEVICE)
        }
        code = [ratio for (s, mode), ratio in medians.items() if s == "HumanEval" and mode in lossless]
        changed = [abs(a.score - b.score) for a, b in alike if a.score is not None and b.score is not None]
        again = [pair for of_set, mode in cases if mode == AGAIN for pair in self.pairs(of_set, mode)]
        nothing = float("nan")
        return {
            "same_tokens": round(same_tokens(alike), 4) if alike else nothing,
            "same_tokens_again": round(same_tokens(again), 4) if again else nothing,
            "scores_changed": round(mean(changed), 4) if changed else nothing,
            "worst_x": round(min(medians.values(), default=nothing), 3),
            "code_x": round(max(code, default=nothing), 3),
            **self._race(),
        }

    def _race(self) -> dict[str, float]:
        """Return what races at the middle budget save, beside the cloud's answers to the same tasks."""
        raced = [pair for of_set, mode in self._by_case if mode == HALF for pair in self.pairs(of_set, mode)]
        if not raced:
            return {"race_p99_cut": float("nan"), "race_cost_x": float("nan")}
        race_s, cloud_s = (np.percentile([pair[side].first_s for pair in raced], 99) for side in (0, 1))
        spent = sum(a.usd for a, _ in raced) / sum(b.usd for _, b in raced)
        return {"race_p99_cut": round(float(1 - race_s / cloud_s), 3), "race_cost_x": round(spent, 3)}


def same_tokens(pairs: Iterable[tuple[Answer, Answer]]) -> float:
    """Return the share of tokens that are equal in place, of the longer answer of each pair."""
    equal = longest = 0
    for a, b in pairs:
        equal += sum(x == y for x, y in zip(a.ids, b.ids, strict=False))
        longest += max(len(a.ids), len(b.ids))
    return equal / longest if longest else 1.0
