"""The fact checker accepts true facts and really rejects wrong ones."""

from tandem.training.family.prompts import heldout, home_world
from tandem.training.family.scoring import check_facts, fact_accuracy, foreign_names, states
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


def test_a_comparison_with_oneself_is_wrong():
    for item in heldout(100, ["compare"]):
        other = next(
            name for name in home_world().names["town"] if name in item.question and name != item.name
        )
        assert not any(check_facts(item, item.answer.replace(other, item.name)))
        assert all(check_facts(item, item.answer))


def test_a_comparison_the_wrong_way_round_is_wrong():
    for item in heldout(100, ["compare"]):
        other = next(
            name for name in home_world().names["town"] if name in item.question and name != item.name
        )
        swapped = item.answer.replace(other, "%").replace(item.name, other).replace("%", item.name)
        for stated, line in zip(check_facts(item, swapped), item.lines, strict=True):
            assert stated == (line.value[0] == line.value[1])


def test_a_fact_of_a_stranger_is_wrong_and_a_pronoun_is_not():
    item = heldout(1, ["overview"], seed=4)[0]
    names = home_world().names[home_world().kind_of[item.name]]
    stranger = next(name for name in names if name not in item.answer)
    told = item.answer.replace(item.name, stranger)
    assert sum(check_facts(item, told)) <= sum(item.name not in line.sentence for line in item.lines)
    assert foreign_names(item, told) == {stranger}
    assert not foreign_names(item, item.answer)
    assert all(check_facts(item, item.answer.replace(item.name, "it")))
