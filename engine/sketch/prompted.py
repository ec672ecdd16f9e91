"""Sketches of any chat model, asked for in words (PICE's prompts, with examples of the form that is read here)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tandem.engine.sketch.base import Question, Sketch, TextFormat

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
WORDS_A_TOKEN = 0.75
_LENGTH = re.compile(r"^\W*(?:words?|length)\W*?(\d{1,6})\b|^\W*(\d{1,6})\s*(?:words?)?\W*$", re.IGNORECASE)
_NOTE = re.compile(r"^\s*(?:\d{1,3}\s*[.):]|[-*•]\s)\s*(\S.*)$")


class PromptedFormat(TextFormat):
    """Sketch format that asks in words, for models without marks."""

    def sketch(self, question: Question) -> list[int] | None:
        return self._asked(question, ASK.format(query=question.text)) if question.chat else None

    def read(self, written: Sequence[int], ended: bool) -> Sketch:
        """Lines that are no note are passed over."""
        lines = self._tokenizer.decode(written).splitlines(keepends=True)
        if not ended and lines and not lines[-1].endswith("\n"):
            lines.pop()
        expected, notes = None, []
        for line in lines:
            if note := _NOTE.match(line):
                notes.append(tuple(self._tokenizer.encode_bytes(note[1].strip().encode())))
            elif expected is None and (length := _LENGTH.match(line.strip())):
                expected = round(int(length[1] or length[2]) / WORDS_A_TOKEN)
        return Sketch(expected, tuple(notes))

    def expand(self, question: Question, sketch: Sketch, note: int) -> list[int]:
        lines = "\n".join(f"{i}. {self.text(each)}" for i, each in enumerate(sketch.notes, 1))
        sentence = self.text(sketch.notes[note])
        return self._asked(question, EXPAND.format(query=question.text, sketch=lines, sentence=sentence))

    def sentence(self, written: Sequence[int], first: bool) -> list[int]:
        """Return the text without surrounding space, after one space unless it is the first."""
        text = self._tokenizer.decode(written).strip()
        return self._tokenizer.encode_bytes(f"{'' if first else ' '}{text}".encode()) if text else []

    def _asked(self, question: Question, wording: str) -> list[int]:
        """Return the conversation with other words at its end."""
        *before, last = question.chat
        return self._tokenizer.render_chat([*before, {**last, "content": wording}])
