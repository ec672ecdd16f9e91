"""The text formats, byte for byte, and the held-out sampler."""

from hypothesis import given
from hypothesis import strategies as st

from tandem.training.family import prompts
from tandem.training.family.encyclopedia.items import LONG_KINDS, TASK_KINDS, Item, Line, make_item
from tandem.training.family.tables import KINDS, shared

ITEM = Item(
    "topic",
    "history",
    "Brenwick",
    "Q?",
    (Line("founded 1622", "It is old.", "1622"), Line("river Jade", "It is wet.", "Jade")),
)


def test_answer_format():
    assert prompts.answer_prompt("Q?") + prompts.answer_text(ITEM) == (
        "<bos><|q|> Q?<|a|> It is old. It is wet.<eos>"
    )


def test_sketch_format():
    assert prompts.sketch_prompt("Q?") + prompts.sketch_text(ITEM, 127) == (
        "<bos><|q|> Q?<|s|><|len|> 130<|;|> founded 1622<|;|> river Jade<eos>"
    )


def test_expansion_format():
    prompt = prompts.expansion_prompt("Q?", ITEM.notes, ITEM.notes[1])
    assert prompt + prompts.expansion_text(ITEM, 1) == (
        "<bos><|q|> Q?<|s|> founded 1622<|;|> river Jade<|x|> river Jade<|e|> It is wet.<eos>"
    )


def test_an_expansion_goes_on_with_the_next_line():
    parts = [prompts.expansion_prompt("Q?", ITEM.notes, ITEM.notes[0]), prompts.expansion_text(ITEM, 0)]
    parts += [prompts.line_prompt(ITEM.notes[1]), prompts.expansion_text(ITEM, 1)]
    assert "".join(parts) == (
        "<bos><|q|> Q?<|s|> founded 1622<|;|> river Jade<|x|> founded 1622<|e|> It is old.<eos>"
        "<|x|> river Jade<|e|> It is wet.<eos>"
    )


def test_a_sketch_is_read_back():
    sketch = prompts.parse_sketch(prompts.sketch_text(ITEM, 127))
    assert sketch == prompts.Sketch(130, ("founded 1622", "river Jade"))


def test_a_sketch_without_length_still_has_its_lines():
    assert prompts.parse_sketch(" many<|;|> river Jade") == prompts.Sketch(None, ("river Jade",))
    assert prompts.parse_sketch("") == prompts.Sketch(None, ())


@given(st.text(alphabet="0 9a<|;>\neos", max_size=60))
def test_parsing_a_sketch_never_fails(text):
    sketch = prompts.parse_sketch(text)
    assert sketch.length is None or sketch.length >= 0


def test_heldout_items_follow_from_the_seed():
    assert prompts.heldout(20, seed=3) == prompts.heldout(20, seed=3)
    assert prompts.heldout(20, seed=3) != prompts.heldout(20, seed=4)
    assert {item.kind for item in prompts.heldout(60)} == set(LONG_KINDS)


def test_heldout_questions_are_distinct_and_never_trained_on():
    questions = prompts.heldout_questions(200)
    assert len(set(questions)) == 200
    trained = {
        q
        for kind in KINDS.values()
        for t in (*kind.attributes.values(), *kind.tasks.values())
        for q in t.asks  # type: ignore[attr-defined]
    }
    trained |= set(shared.STORY_ASKS)
    for item in prompts.heldout(300, TASK_KINDS, seed=9):
        assert item.question.replace(item.name, "{n}") not in trained


def test_items_can_be_made_about_a_chosen_entity():
    from random import Random

    world = prompts.home_world()
    name = world.names["machine"][0]
    for kind in ("fact", "overview", "topic", "long"):
        assert name in make_item(world, Random(1), kind, name).question
