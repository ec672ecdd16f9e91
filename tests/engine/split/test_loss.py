"""The measured loss is that of the embedded target, and nothing is assumed of other models."""

from __future__ import annotations

from tandem.engine import family
from tandem.engine.base import SplitInfo
from tandem.engine.split.loss import kept, measured
from tandem.engine.torch.split import bundle


def test_it_is_of_the_embedded_target() -> None:
    split = bundle.describe(family.path("target"), 2)
    known = measured()[split.checksum]
    assert (known.model, "hat_wire" in known.source) == ("target", True)
    assert kept(split, "int6") >= 0.995
    assert kept(split, "float16") == 1.0


def test_a_model_without_a_measurement_has_only_kinds_of_16_bits() -> None:
    unknown = SplitInfo("unknown", 2, 12, 512)
    assert [kept(unknown, kind) for kind in ("float32", "float16", "int8", "int6")] == [1.0, 1.0, 0.0, 0.0]
