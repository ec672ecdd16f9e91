"""Wording of questions: what in a question asks for points, and what binds its answer together or makes it short.

PICE (Zhan et al. 2025, section II) sketches long answers; its large model gives short ones in full. Expanding in
parallel needs more: the answer must be a list of independent points, each with something to tell (Skeleton-of-Thought,
Ning et al. 2024, appendix C.2.1). So two kinds of features are looked for. A single binding one outweighs all that ask.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from tandem.policies.sketch.languages import PATTERNS

LOOKED_AT = 1_000  # characters; a longer question quotes a passage and asks about it


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of a question.

    name: short name.
    reason: why it matters.
    pattern: matches it anywhere in the text.
    """

    name: str
    reason: str
    pattern: re.Pattern[str]


def _feature(name: str, reason: str, *patterns: str) -> Feature:
    return Feature(name, reason, re.compile("|".join([*patterns, *PATTERNS.get(name, ())]), re.IGNORECASE))


_POINTS = (
    "(?:achievements|activities|advantages|alternatives|applications|approaches|arguments|aspects|benefits|branches"
    "|books|categories|causes|challenges|characteristics|clues|components|consequences|considerations|contributions"
    "|developments|differences|disadvantages|drawbacks|effects|elements|examples|exercises|facts|factors|features|films"
    "|forms|functions|habits|hobbies|ideas|impacts?|implications|issues|kinds|layers|lessons|measures|methods|mistakes"
    "|movies|museums|myths|norms|obstacles|options|perspectives|places|policies|practices|principles|problems"
    "|pros and cons|qualities|questions|reasons|recommendations|resources|rewards|risks|roles|schools of thought|signs"
    "|similarities|skills|solutions|stages|stakeholders|strategies|strengths|suggestions|symptoms|techniques|themes"
    "|theories|things|tips|topics|traits|treatments|trends|types|uses|ways|weaknesses)"
)
_BARE = (
    "(?:actors|animals|anagrams|antonyms|authors|birds|brands|capitals|cities|colou?rs|companies|continents|countries|dates"
    "|days|digits|emojis|flowers|fruits|integers|languages|letters|metals|months|names|numbers|planets|presidents|primes"
    "|rivers|states|synonyms|titles|vegetables|words)"
)
_MODEST = r"(?:some|several|various|a few|three|four|five|six|seven|eight|nine|ten|\d{1,2})"
_UP_TO_FOUR_WORDS = r"(?:\S+\s+){0,4}?"

ASKS_FOR_POINTS = (
    _feature(
        "list",
        "a list is asked for, whose entries stand side by side",
        r"\b(?:list|name|give|suggest|provide|share|recommend|propose|tell|identify)\s+(?:me\s+|us\s+)?"
        rf"{_UP_TO_FOUR_WORDS}{_POINTS}\b",
        rf"\b(?:list|name|give|suggest|provide|share|recommend|propose)\s+(?:me\s+|us\s+)?{_MODEST}\s",
        r"\b(?:create|make|give|provide|prepare|propose|develop|compile)\s+(?:me\s+|us\s+)?(?:an?|the)\s+(?:\w+\s+)?"
        r"(?:list|outline|overview|checklist)\b",
        r"\b(?:brainstorm|recommend)\b",
    ),
    _feature(
        "points",
        "several things of a kind are asked about, each with a paragraph of its own",
        r"\bwhat\s+(?:are|were)\s+(?:the|some)\b",
        rf"\bwhat\s+(?:are|were|can|could|do|does|did|might|would)\s+{_UP_TO_FOUR_WORDS}{_POINTS}\b",
        rf"\b(?:what|which)\s+(?:\w+\s+)?{_POINTS}\b",
        r"\b(?:main|key|major|common|potential|important|possible|different|several|five|four|three)\s+(?:\w+\s+)?"
        rf"{_POINTS}\b",
        rf"\b(?:describe|discuss|explain|explore|identify|outline|analy[sz]e)\s+the\s+(?:\w+\s+){{0,3}}{_POINTS}\b",
        r"\bwhat makes\b",
    ),
    _feature(
        "advice",
        "advice is a list of measures that do not wait for one another",
        r"\bhow\s+(?:can|could|should|might)\s+\w+",
        r"\bhow\s+(?:do|to)\s+(?:i\s+|we\s+|you\s+|they\s+)?(?:best\s+)?(?:avoid|balance|become|boost|build|choose|cope"
        r"|cultivate|deal|develop|encourage|get\s+better|handle|improve|increase|keep|learn|make\s+friends|manage"
        r"|motivate|overcome|prepare|prevent|promote|protect|raise|reduce|save|stay|stop|strengthen|support)\b",
        r"\bwhat\s+(?:should|can|could)\s+\w+",
        r"\b(?:any|some)\s+(?:advice|tips|suggestions)\b",
    ),
    _feature(
        "comparison",
        "a comparison takes its criteria one by one",
        r"\b(?:compare|contrast|versus|vs\.?|differ|differs|distinguish(?:es)?|differences? between|different from)\b",
        r"\bboth sides\b",
    ),
    _feature(
        "influence",
        "what influences something does so in several ways",
        r"\bhow\s+(?:do|does|did|has|have|is|are|will|would)\b.*"
        r"\b(?:affect|alter|chang|contribut|impact|influenc|shap|transform)\w*\b",
        r"\b(?:impact|effects?|influence|importance|significance)\s+of\b",
        r"\b(?:correlation|relationship)\s+between\b",
        r"\bwhat\s+roles?\b",
        r"\bwhat\s+is\s+the\s+future\b",
    ),
    _feature(
        "discussion",
        "what can be argued about has several sides",
        r"\b(?:discuss|debate)\b",
        r"^should\b",
        r"^is it\s+(?:better|worth|right|ethical|fair)\b",
        r"\bmore\s+(?:harm|good)\s+than\s+(?:harm|good)\b",
        r"\bwhat\s+do\s+you\s+think\b",
        r"^do(?:es)?\b.*\bmatter\b",
    ),
    _feature(
        "topic",
        "a topic of a textbook has sections",
        r"\b(?:describe|explain|explore|outline)\s+the\s+(?:\w+\s+){0,2}"
        r"(?:anatomy|basics|concept|culture|fundamentals|structure|system|theory)\b",
    ),
    _feature(
        "reasons",
        "people have more than one reason for what they do",
        r"\bwhy\s+(?:do|does|might|would|should|could|are|is)\s+(?:so\s+)?(?:many\s+|most\s+)?"
        r"(?:some\w*|people|children|teams|companies|a\s+\w+|an\s+\w+)\b",
        r"\bwhy\s+(?:is|are)\b.*\b(?:important|popular|necessary|valuable|essential)\b",
        r"\bwhat\s+(?:might|could|would)\s+(?:explain|cause|lead)\b",
    ),
    _feature(
        "signs",
        "signs are looked for one by one",
        r"\bhow\s+(?:can|do|could|would)\s+(?:you|one|i|we|someone)\s+(?:tell|know|recogni[sz]e|determine|spot|identify)\b",
    ),
    _feature(
        "counterfactual",
        "had one thing been otherwise, it would have had consequences in many fields",
        r"\bwhat\s+if\b",
        r"\bwhat\s+(?:would|might|could)\b.*\b(?:if|had|happened)\b",
        r"\bhow\s+(?:would|might|could)\b.*\b(?:if|had|have\s+been|have\s+changed|be\s+different)\b",
    ),
)
"""Features of which one suffices if none binds."""

BINDS = (
    _feature(
        "code",
        "each line of a program depends on others",
        r"```",
        r"\bdef \w+\(",
        r"\bfor \w+ in\b",
        r"\b(?:python|java|javascript|typescript|c\+\+|c#|rust|sql|html|css|bash|react|regex|regular expression)(?!\w)",
        r"\b(?:build|code|create|design|develop|implement|program|write)\b.{0,30}\b(?:algorithm|api|class"
        r"|data structure|function|program|query|script\s+that|unit test|website|web page)\b",
        r"\b(?:binary search|linked list|recursi(?:on|ve)|(?:time|space) complexity|constant time)\b",
    ),
    _feature(
        "mathematics",
        "each step of a calculation or a proof needs those before it",
        r"\d\s*[-+*/^=<>]\s*\(?[\da-z]",
        r"\b[a-z]\s*[\^=]\s*\(?[-\da-z]",
        r"\b(?:calculate|compute|derivative|eigenvalues?|equation|inequality|integral|perimeter|probability (?:of|that)"
        r"|prove|remainder|simplify|slope|solve for|square root)\b",
        r"\d\s*%|[$€£]\s*\d",
        r"\b(?:area|limit|sum|value|volume) of (?:an?|the|two|f)\b.*\d",
        r"\d.*\bwhat(?:'s| is| are| was| were| will be)\b.*"
        r"\b(?:age|area|average|cost|difference|height|price|sum|total|weight)\b",
    ),
    _feature(
        "quantity",
        "the answer is one number; where it is an estimate, a chain leads to it",
        r"\bhow\s+(?:many|much|long|far|tall|old|fast|heavy|big|deep|high|often)\b",
        r"\b(?:approximately|estimate|roughly)\b",
        r"\bwhat\s+(?:fraction|number|percentage)\b",
    ),
    _feature(
        "names",
        "a list of mere names leaves nothing to expand",
        r"^what\s+(?:are|were)\s+the\s+(?:\w+\s+)?(?:capitals|colou?rs|dates|names|numbers|words)\b",
        rf"\b(?:give|list|name|tell|write down)\s+(?:me\s+|us\s+)?(?:all|the|(?:the\s+)?(?:first\s+)?{_MODEST})\s+"
        rf"{_UP_TO_FOUR_WORDS}{_BARE}\b(?!.*\b(?:describe|explain|why|how|reasons?|with\s+\w+\s+(?:descriptions?|details?))\b)",
        r"\bonly\s+(?:the\s+)?(?:answer|letter|names?|number|titles?|words?)\b",
        r"\b(?:and\s+)?(?:nothing else|no (?:explanation|other text|comments?)|without (?:any\s+)?explanation)\b",
    ),
    _feature(
        "fact",
        "a single fact is asked for",
        r"(?:^|[.,:]\s+)who\s+(?:\w+\s+)?(?:are|composed|discovered|directed|founded|had|has|invented|is|made|painted|plays?"
        r"|played|said|sang|sings|was|were|won|wrote)\b",
        r"\bwhat(?:'s|\s+is|\s+was)\s+the\s+(?:\w+\s+){0,3}(?:capital|date|meaning|name|nickname|population|surname|title|year)"
        r"\s+(?:for|of)\b",
        r"^(?:in\s+(?:what|which)\s+(?:city|country|month|season|state|year)|when\s+(?:did|do|does|is|was|were|will)"
        r"|where\s+(?:are|did|do|does|is|was|were)|(?:what|which)\s+(?:city|colou?r|country|day|year))\b",
        r"\b(?:what|which)\s+(?:\S+\s+){0,3}?(?:actor|actress|book|episode|film|language|movie|player|season|song|team|time)\s+"
        r"(?:came|did|do|does|has|is|was)\b",
        r"\bplay(?:s|ed)?\s+the\s+(?:\w+\s+)?(?:part|role)\b",
    ),
    _feature(
        "choice",
        "one of the given answers is right",
        r"\bA[).:]\s.*\bB[).:]\s",
    ),
    _feature(
        "puzzle",
        "a puzzle is solved by a chain of thoughts",
        r"\b[A-Z]\w*\s+is\s+(?:\w+\s+){0,3}(?:brother|daughter|father|mother|older|sister|son|taller|wife|younger)\s+(?:of|than)\b",
        r"\b(?:riddle|brain ?teaser)\b",
    ),
    _feature(
        "layout",
        "a form that is asked for is kept by one hand",
        r"\b(?:csv|json|latex|mermaid|toml|xml|yaml)\b",
        r"\b(?:as|in|into|using|with)\s+(?:a\s+|an\s+|the\s+form\s+of\s+a\s+)?(?:\w+\s+)?table\b",
        r"\b(?:table format|tabular)\b",
        r"\b(?:create|draw|give|make|produce|show)\s+(?:me\s+)?an?\s+(?:\w+\s+)?(?:chart|diagram|table|timetable|schedule)\b",
    ),
    _feature(
        "writing",
        "a letter or a story is written in one go",
        r"^(?:compose|draft|write)\b",
        r"\b(?:compose|continue|craft|create|develop|draft|invent|make up|pen|prepare|tell|write)\b.{0,60}"
        r"\b(?:apology|article|chapter|character|complaint|conversation|description|dialogue|diary|e-?mail|essay|eulogy"
        r"|haiku|headline|introduction|invitation|joke|journal|letter|limerick|lyrics|memo|message|monologue|myth|note"
        r"|novel|paragraph|poem|post|press release|review|scene|script|slogan|song|sonnet|speech|story|tale)\b",
        r"\bvivid(?:ly)?\b",
        r"\bas a poet\b",
    ),
    _feature(
        "voice",
        "a voice that is played speaks in one go",
        r"\b(?:answer as|imagine being|imagine yourself|persona|picture yourself|pretend|put yourself|role-?play"
        r"|(?:reply|respond|speak|talk|write) (?:as if|in the style|like)|(?:answer|reply|respond|speak|talk) as an?"
        r"|in character)\b",
    ),
    _feature(
        "role",
        "whoever is told who he is answers as such",
        r"\bact as\b",
        r"\b(?:adopt|assume|embrace|play|take on)\s+the\s+(?:part|persona|role)\b",
        r"\byou\s+(?:are|were)\s+(?:now\s+)?(?:an?|the)\b",
        r"^you\s+are\b",
        r"(?:^|[,.]\s+)as\s+an?\s+(?:\w+[\s-]){0,3}\w+,",
    ),
    _feature(
        "given text",
        "a text that is given is worked through as it stands",
        r"\b(?:classify|correct the|extract|fill in|paraphrase|proofread|rephrase|rewrite|summari[sz]e|translate)\b",
        r"\b(?:below|following|this)\s+(?:\w+\s+)?"
        r"(?:article|data|list|paragraph|passage|questions|review|sentence|statement|story|text)s?\b",
        r"\b(?:convert|sort)\s+(?:the|these|this)\b",
        r"\b(?:answer|code|function|list|output|paragraph|passage|program|query|response|script|snippet|story|table|text)s?\s+"
        r"(?:above|below)\b|\b(?:above|previous)\s+(?:answer|code|function|output|paragraph|passage|response|text)\b",
        rf"^(?s:.{{{LOOKED_AT}}})",
    ),
    _feature(
        "procedure",
        "steps follow one another",
        r"\b(?:step[\s-]by[\s-]step|stage by stage|day by day|recipe|walk (?:me )?through|itinerary|\w+-day trip)\b",
        r"\bhow\s+(?:is|are|was|were)\s+\w+\s+(?:built|made|produced)\b",
        r"\bthe\s+process\s+by\s+which\b",
    ),
    _feature(
        "brevity",
        "a short answer leaves nothing to expand",
        r"\b(?:briefly|concise(?:ly)?|in short|in (?:an?|one|two|a single|a few) (?:words?|sentences?|paragraphs?))\b",
        r"\b(?:fewer|less|no more) than (?:\w+ )?(?:lines|paragraphs|sentences|words)\b",
    ),
)
"""Features of which one suffices for an answer in full."""


class QuestionFeatures(NamedTuple):
    """Features of a question: those of ASKS_FOR_POINTS and those of BINDS."""

    asks: tuple[Feature, ...]
    binds: tuple[Feature, ...]


def read(question: str) -> QuestionFeatures:
    """Return all features of a question."""
    text = question.strip()[:LOOKED_AT]
    return QuestionFeatures(
        *(tuple(one for one in kind if one.pattern.search(text)) for kind in (ASKS_FOR_POINTS, BINDS))
    )
