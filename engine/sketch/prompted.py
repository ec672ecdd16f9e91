"""Sketches of any chat model, asked for in words (PICE's prompts, with examples of the form that is read here)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tandem.engine.sketch.base import Question, Sketch, TextFormat
from tandem.engine.sketch.cleaning import sentence_of, without_thoughts
from tandem.policies.sketch.wording import read

ASK = """Do not answer the question below yet. Write a sketch of its answer: first, on a line of its own, how many \
words the full answer needs; then one line for each sentence of the full answer, in order, numbered, of two to ten \
words, which together say all that the answer says. Write nothing else.

Question: Why do leaves change colour in autumn?
Words: 90
1. less daylight, cooler nights
2. trees stop making chlorophyll
3. green fades within weeks
4. yellow carotenoids were there before
5. red anthocyanins form from trapped sugar
6. then leaves fall to save water

Question: Which two ways are there of boiling an egg?
Words: 40
1. soft: six minutes, runny yolk
2. hard: ten minutes, firm yolk
3. cold water stops both

Question: {query}"""
EXPAND = (
    "I have a question about {query}. The simplification answer is as follows:\n{sketch}\nNow, please help me "
    "complete and only complete the writing of a short sentence {sentence}. Do not continue with other sentences!"
)
LISTED = frozenset({"list", "points", "advice"})
"""Ways of asking that a numbered list answers."""
WORDS_A_TOKEN = 0.75
SHORTEST, LONGEST = 5, 20_000
"""Words that a stated length can have."""
_NUMBER = r"(\d{1,3}(?:[,.' ]\d{3})+|\d{1,6})"
_LENGTH = re.compile(
    rf"^\W*(?:(?:estimated|expected|full|total)\s+)?(?:words?|length|word\s+count|字数|文字数)(?:\s+(?:count|needed))?\W*?"
    rf"(?:about|approximately|approx\.?|around|circa|ca\.?|roughly|~)?\W*?{_NUMBER}\b"
    rf"|^\W*(?:about|approximately|approx\.?|around|circa|ca\.?|roughly|~)?\W*{_NUMBER}\s*(?:words?)?\W*$",
    re.IGNORECASE,
)
_NOTE = re.compile(r"^\s*(?:\*\*|__)?\s*(?:\(?\d{1,3}\s*[.):、．)]|[-*•]\s)\s*(\S.*)$")


class PromptedFormat(TextFormat):
    """Sketch format that asks in words, for models without marks."""

    def sketch(self, question: Question) -> list[int] | None:
        return self._asked(question, ASK.format(query=question.text)) if question.chat else None

    def read(self, written: Sequence[int], ended: bool) -> Sketch:
        """Lines that are no note are passed over, and so is what the model thinks."""
        lines = without_thoughts(self._tokenizer.decode(written)).splitlines(keepends=True)
        if not ended and lines and not lines[-1].endswith("\n"):
            lines.pop()
        expected, notes = None, list[tuple[int, ...]]()
        for line in lines:
            if note := _NOTE.match(line):
                if text := note[1].replace("**", "").replace("__", "").strip():
                    notes.append(tuple(self._tokenizer.encode_bytes(text.encode())))
            elif expected is None and (length := _LENGTH.match(line.strip())):
                words = int(re.sub(r"\D", "", length[1] or length[2]))
                expected = round(words / WORDS_A_TOKEN) if SHORTEST <= words <= LONGEST else None
        return Sketch(expected, tuple(notes))

    def expand(self, question: Question, sketch: Sketch, note: int) -> list[int]:
        lines = "\n".join(f"{i}. {self.text(each)}" for i, each in enumerate(sketch.notes, 1))
        sentence = self.text(sketch.notes[note])
        return self._asked(question, EXPAND.format(query=question.text, sketch=lines, sentence=sentence))

    def clean(self, written: Sequence[int], sketch: Sketch, note: int) -> list[int]:
        """Return the point's text alone; see `cleaning.sentence_of`."""
        others = [self.text(each) for i, each in enumerate(sketch.notes) if i != note]
        return self._tokenizer.encode_bytes(sentence_of(self._tokenizer.decode(written), others).encode())

    def sentence(self, question: Question, written: Sequence[int], number: int) -> list[int]:
        """Return the text as an item where the question asks for a list, else after one space unless it is the
        first."""
        text = self._tokenizer.decode(written).strip()
        if not text:
            return []
        if listed(question.text):
            before = f"{number + 1}. " if number == 0 else f"\n{number + 1}. "
        else:
            before = " " if number else ""
        return self._tokenizer.encode_bytes(f"{before}{text}".encode())

    def _asked(self, question: Question, wording: str) -> list[int]:
        """Return the conversation with other words at its end."""
        *before, last = question.chat
        return self._tokenizer.render_chat([*before, {**last, "content": wording}])


def listed(question: str) -> bool:
    """Return whether the answer is a list rather than a paragraph: one of several things or measures."""
    return any(feature.name in LISTED for feature in read(question).asks)
