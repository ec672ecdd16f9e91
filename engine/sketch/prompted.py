"""Sketches of any chat model, asked for in words, and held to their form by grammars."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tandem.engine.base import Grammar
from tandem.engine.sketch.base import Extent, Question, Sketch, TextFormat
from tandem.engine.sketch.cleaning import same, sentence_of, whole, without_thoughts
from tandem.policies.sketch.wording import read

ASK = """{query}

Do not answer yet. Write only the outline of your answer: up to {lines} numbered lines, one for each point of the \
answer, in order, each of about {words} words that tell what the point says. No introduction, no conclusion."""
EXPAND_ITEM = """{query}

Your answer is a list, of which you write one point alone: {note}. Tell the reader something useful about it in one or \
two sentences."""
"""Prompt to expand notes, without the other points: small models recite those that they see."""
EXPAND = (
    "I have a question about {query}. The simplification answer is as follows: {notes}. Now, please help me "
    "complete and only complete the writing of a short sentence {note}. Do not continue with other sentences!"
)
"""PICE's own, but for the sketch on one line: small models recite one of several lines."""
POINT = 50
"""Tokens of a point of an ordinary model's answer, about."""
LINES = (3, 12)
"""Least and most lines of a sketch that is asked for."""
LINE = 4
"""Tokens of a line beside its words, about: number and end."""
WORDS = (3, 40)
"""Least and most words of a line."""
ONE_LINE = Grammar("regex", r" ?[^\s\d*#>-][^\n]{12,}[.!?。！？][\"'”’)]?")
"""Form of an expansion: a line that begins as no list does, and ends as a sentence does."""
WORD = r"[\w'’()/&%$€+.-]{1,30}[,:;]?"
"""Form of a word. Punctuation comes last: where a line may have no further word, a model would go on behind a comma."""
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

    states_length = False  # ordinary models say 100 of any answer

    def sketch(self, question: Question, extent: Extent | None = None) -> list[int] | None:
        if not question.chat:
            return None
        lines, words = shape(extent)
        return self._asked(question, ASK.format(query=question.text, lines=lines, words=words))

    def sketch_form(self, extent: Extent | None) -> Grammar:
        lines, words = shape(extent)
        line = rf"[1-9][0-9]?\. {WORD}( {WORD}){{0,{words + words // 2}}}\n"
        return Grammar("regex", rf"({line}){{2,{lines}}}")

    def sentence_form(self) -> Grammar:
        return ONE_LINE

    def read(self, written: Sequence[int], ended: bool) -> Sketch:
        """Lines that are no note are passed over, and so is what the model thinks."""
        lines = without_thoughts(self._tokenizer.decode(written)).splitlines(keepends=True)
        if not ended and lines and not lines[-1].endswith("\n"):
            lines.pop()
        expected, notes, seen = None, list[tuple[int, ...]](), set[str]()
        for line in lines:
            if note := _NOTE.match(line):
                text = note[1].replace("**", "").replace("__", "").strip()
                if text and (key := same(text)) not in seen:  # small models go round in circles
                    seen.add(key)
                    notes.append(tuple(self._tokenizer.encode_bytes(text.encode())))
            elif expected is None and (length := _LENGTH.match(line.strip())):
                words = int(re.sub(r"\D", "", length[1] or length[2]))
                expected = round(words / WORDS_A_TOKEN) if SHORTEST <= words <= LONGEST else None
        return Sketch(expected, tuple(notes))

    def expand(self, question: Question, sketch: Sketch, note: int) -> list[int]:
        """Return the prompt; an item of a list has its label in place of the beginning of the answer."""
        notes, label = "; ".join(map(self.text, sketch.notes)), self.text(sketch.notes[note])
        if not listed(question.text):
            return self._asked(question, EXPAND.format(query=question.text, notes=notes, note=label))
        asked = self._asked(question, EXPAND_ITEM.format(query=question.text, note=label))
        return [*asked, *self._tokenizer.encode_bytes(f"{label}:".encode())]

    def opening(self, question: Question, note: Sequence[int]) -> None:
        return None

    def clean(
        self, question: Question, sketch: Sketch, note: int, written: Sequence[int], ended: bool
    ) -> list[int]:
        """Return the point's text alone, behind its label if it is an item; see `cleaning.sentence_of`."""
        others = [self.text(each) for i, each in enumerate(sketch.notes) if i != note]
        text = sentence_of(self._tokenizer.decode(written), others)
        if not ended:
            text = whole(text)
        if text and listed(question.text):
            text = f"**{self.text(sketch.notes[note]).rstrip('.:')}**: {text}"
        return self._tokenizer.encode_bytes(text.encode())

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


def shape(extent: Extent | None) -> tuple[int, int]:
    """Return the most lines of a sketch of that extent, and the words of a line."""
    if extent is None:
        return LINES[1], 8
    lines = min(max(LINES[0], round(extent.answer / POINT)), LINES[1])
    words = round((extent.tokens / lines - LINE) * WORDS_A_TOKEN)
    return lines, min(max(WORDS[0], words), WORDS[1])


def listed(question: str) -> bool:
    """Return whether the answer is a list rather than a paragraph: one of several things or measures."""
    return any(feature.name in LISTED for feature in read(question).asks)
