"""Sketches: prompts that ask models for sketches and expansions, and parsers of their output."""

from __future__ import annotations

from tandem.engine.sketch.base import SketchFormat
from tandem.engine.sketch.marked import MarkedFormat
from tandem.engine.sketch.prompted import PromptedFormat
from tandem.engine.text.tokenizer import Tokenizer


def sketch_format(tokenizer: Tokenizer) -> SketchFormat:
    """The form that a model was trained in, where its vocabulary has the marks of that; else one in words."""
    return MarkedFormat.of(tokenizer) or PromptedFormat(tokenizer)
