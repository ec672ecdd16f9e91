"""Error of the hardware model on tables that it has not seen.

Two ways: every third row of each table of dense operators and of attention is held out and interpolated; and every
whole combination of GPU, model and tensor parallelism, and every table of all-reduces, is held out and predicted as one
without a table would be. (What the host adds is not judged.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from tandem.simulator.hardware import catalog, roofline, tables
from tandem.simulator.hardware.gpus import GPUS, Gpu
from tandem.simulator.hardware.interpolate import Chunks, Curve, Grid
from tandem.simulator.hardware.models import MODELS, ModelShape
from tandem.simulator.hardware.profiles import (
    ALL_REDUCE,
    ATTENTION,
    DENSE,
    PCIE_ALL_REDUCE,
    PREFILL_ATTENTION,
    Profile,
    attention_tables,
    dense_tables,
    nearest,
    same,
)


class HeldOut(NamedTuple):
    """Error on the held-out part of one table.

    operator: "dense", "decode attention", "prefill attention" or "all-reduce".
    operation: "prefill", "decode" or "both", which it serves.
    method: "rows" (interpolated), "scaled" (from another table) or "roofline".
    error: mean absolute relative error over the rows.
    """

    table: str
    operator: str
    operation: str
    method: str
    error: float
    rows: int


def rows(data: Path) -> Iterator[HeldOut]:
    """Every third row of the tables of dense operators and of attention. Dense operators count to prefill above 64
    tokens, to decoding below."""
    for profile in DENSE:
        seen, unseen = (dense_tables(data, profile, keep)[0] for keep in (_seen, _unseen))
        yield from _dense_errors(profile, "rows", seen.at, unseen, seen.xs)
    for profile in PREFILL_ATTENTION:
        decode, prefill = attention_tables(data, profile, _seen)
        unseen_decode, unseen_prefill = attention_tables(data, profile, _unseen)
        if profile in ATTENTION:
            yield _attention_error(profile, "decode attention", "rows", decode.at, unseen_decode)
        yield _attention_error(profile, "prefill attention", "rows", prefill.at, unseen_prefill)


def combinations(data: Path) -> Iterator[HeldOut]:
    """Every table as a whole: dense operators scaled from the nearest of the others, and everything by the roofline.

    There is one attention table a GPU and one all-reduce table a kind of link, so nothing is left to scale these from.
    """
    for profile in DENSE:
        gpu, shape, ways = _arguments(profile)
        curve, _ = dense_tables(data, profile)
        others = [other for other in DENSE if not same(other, gpu, shape, ways)]
        if (other := nearest(others, gpu, shape, ways)) is not None:
            scaled = catalog.dense(data, other, gpu, shape, ways)
            yield from _dense_errors(profile, "scaled", scaled, curve)
        yield from _dense_errors(
            profile, "roofline", _rounded(partial(roofline.dense_s, gpu, shape, ways)), curve
        )
    for profile in PREFILL_ATTENTION:
        decode, prefill = attention_tables(data, profile)
        if profile in ATTENTION:
            estimate = partial(roofline.decode_attention_s, *_arguments(profile))
            yield _attention_error(profile, "decode attention", "roofline", estimate, decode)
        estimate = partial(roofline.prefill_attention_s, *_arguments(profile))
        yield _attention_error(profile, "prefill attention", "roofline", estimate, prefill)
    for name, file in ALL_REDUCE.items():
        for ways in (2, 4, 8):
            yield _all_reduce_error(data, file, GPUS[name], ways)
    pcie = next(gpu for gpu in GPUS.values() if not gpu.link_bytes_per_s)
    yield _all_reduce_error(data, PCIE_ALL_REDUCE, pcie, 4)


def as_without_a_table(found: Iterable[HeldOut]) -> list[HeldOut]:
    """Keep the hardware model's own choice for whole combinations: scaled from a table if there is one."""
    best = {(error.table, error.operator, error.operation): error for error in sorted(found, key=_by_method)}
    return list(best.values())


def _by_method(error: HeldOut) -> bool:
    return error.method == "scaled"


def _arguments(profile: Profile) -> tuple[Gpu, ModelShape, int]:
    return GPUS[profile.gpu], MODELS[profile.model], profile.ways


def _rounded(seconds: Callable[[int], float]) -> Callable[[float], float]:
    return lambda tokens: seconds(int(tokens))


def _seen(row: int) -> bool:
    return row % 3 != 0


def _unseen(row: int) -> bool:
    return row % 3 == 0


def _dense_errors(
    profile: Profile,
    method: str,
    predicted: Callable[[float], float],
    curve: Curve,
    known: Sequence[float] = (),
) -> Iterator[HeldOut]:
    for operation, low, high in (("decode", 1, 64), ("prefill", 65, 1 << 20)):
        errors = [
            abs(predicted(x) / y - 1)
            for x, y in zip(curve.xs, curve.ys, strict=True)
            if low <= x <= high and x not in known
        ]
        if errors:
            name = f"{profile.file} TP{profile.ways}"
            yield HeldOut(name, "dense", operation, method, mean(errors), len(errors))


def _attention_error(
    profile: Profile,
    operator: str,
    method: str,
    predicted: Callable[[float, float], float],
    table: Grid | Chunks,
) -> HeldOut:
    errors = [abs(predicted(row, x) / y - 1) for row, x, y in table.points()]
    return HeldOut(profile.file, operator, operator.split()[0], method, mean(errors), len(errors))


def _all_reduce_error(data: Path, file: str, gpu: Gpu, ways: int) -> HeldOut:
    """Over sizes from a decode step's to a chunk's: most rows of the tables are of larger ones."""
    curve = tables.all_reduce(data / file, ways)
    sizes = [2.0**power for power in range(14, 26)]
    errors = [abs(roofline.all_reduce_s(gpu, ways, size) / curve.at(size) - 1) for size in sizes]
    return HeldOut(f"{file} {ways} GPUs", "all-reduce", "both", "roofline", mean(errors), len(errors))
