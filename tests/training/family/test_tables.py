"""Phrasings: enough to train on, and held-out ones that test understanding."""

import re

import pytest

from tandem.training.family.encyclopedia.items import TASK_KINDS
from tandem.training.family.prompts import heldout
from tandem.training.family.tables import KINDS, shared

# Words of questions that do not tell which attribute is asked for.
FUNCTION_WORDS = """
    a about and are as at be by can could did do does for from had has have his how i in is it its like
    many me much n name of on or people per say should so tell that the their they to under v was were
    what when where which who whom whose why with would you your
"""
ATTRIBUTES = [(kind, name) for kind, table in KINDS.items() for name in table.attributes]


def cues(question: str) -> set[str]:
    return set(re.findall(r"[a-z]+", question.lower())) - set(FUNCTION_WORDS.split())


def all_cues(questions: tuple[str, ...]) -> set[str]:
    return set().union(*map(cues, questions))


def test_there_are_eight_attributes_of_four_kinds():
    assert {kind: len(table.attributes) for kind, table in KINDS.items()} == dict.fromkeys(KINDS, 8)


@pytest.mark.parametrize(("kind", "name"), ATTRIBUTES)
def test_attributes_have_templates_and_phrasings(kind, name):
    attribute = KINDS[kind].attributes[name]
    assert len(set(attribute.sentences)) == 4
    assert len(set(attribute.asks)) >= 8
    assert len(set(attribute.held)) == 2
    assert not set(attribute.asks) & set(attribute.held)


@pytest.mark.parametrize(("kind", "name"), ATTRIBUTES)
def test_heldout_questions_use_cues_of_their_own_attribute_only(kind, name):
    attributes = KINDS[kind].attributes
    for question in attributes[name].held:
        assert cues(question) & all_cues(attributes[name].asks), question
        for other in attributes:
            if other != name:
                assert not cues(question) & all_cues(attributes[other].asks), (question, other)


def test_tasks_have_eight_phrasings_and_two_held_out():
    asked = [(task.asks, task.held) for table in KINDS.values() for task in table.tasks.values()]
    asked += [(shared.STORY_ASKS, shared.STORY_HELD), (shared.COMPARE_ASKS, shared.COMPARE_HELD)]
    asked += [(shared.ARITHMETIC_ASKS[sign], shared.ARITHMETIC_HELD[sign]) for sign in "+-"]
    for asks, held in asked:
        assert len(set(asks)) >= 8
        assert len(set(held)) == 2
        assert not set(asks) & set(held)


@pytest.mark.parametrize("kind", TASK_KINDS)
def test_every_sentence_and_every_note_states_its_value(kind):
    from tandem.training.family.scoring import states

    for item in heldout(100, [kind]):
        assert item.kind == kind
        for line in item.lines:
            assert states(line.sentence, line.value), line
            assert states(line.note, line.value), line
            assert "{" not in line.sentence + line.note + item.question
