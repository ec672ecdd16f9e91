"""The fact checker accepts true facts and really rejects wrong ones."""

from tandem.training.family.prompts import heldout
from tandem.training.family.scoring import check_facts, fact_accuracy, states
from tandem.training.family.tables.values import POOLS


def test_whole_words_only():
    assert states("It is painted Red.", "red")
    assert not states("It is hundreds of years old.", "red")
    assert not states("It was founded in 16221.", "1622")


def test_both_parts_of_a_value_are_needed():
    assert states("In April there is the mask festival.", ("mask", "April"))
    assert not states("In April there is the moon festival.", ("mask", "April"))


def test_true_answers_have_every_fact():
    items = heldout(200)
    assert fact_accuracy(items, [item.answer for item in items]) == 1.0


def test_an_answer_with_any_other_value_is_rejected():
    for item in heldout(300, ["fact"]):
        (value,) = (line.value for line in item.lines)
        for pool in POOLS.values():
            if value in pool:
                for wrong in pool:
                    assert check_facts(item, item.answer.replace(str(value), wrong)) == [wrong == value]


def test_answers_about_others_have_few_of_the_facts():
    items = heldout(200)
    assert fact_accuracy(items, [item.answer for item in items[1:] + items[:1]]) < 0.15
