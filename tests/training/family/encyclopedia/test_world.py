"""The encyclopedia is the same everywhere, and a value found in a text means that it states the fact."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter

from tandem.training.family.encyclopedia.world import COUNTS, ENTITY_VALUED, World
from tandem.training.family.prompts import home_world
from tandem.training.family.scoring import states
from tandem.training.family.tables import KINDS, shared
from tandem.training.family.tables.values import POOLS

DIGEST = (
    "import hashlib, json; from tandem.training.family.encyclopedia.world import World;"
    "print(hashlib.sha256(json.dumps(World(0).facts).encode()).hexdigest())"
)


def test_is_the_same_in_every_process():
    here = hashlib.sha256(json.dumps(World(0).facts).encode()).hexdigest()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        there = subprocess.run(
            [sys.executable, "-c", DIGEST], capture_output=True, text=True, check=True, env=environment
        )
        assert there.stdout.strip() == here


def test_has_240_entities_and_1920_facts():
    world = home_world()
    assert Counter(world.kind_of.values()) == COUNTS
    assert len(world.everyone) == 240
    assert sum(len(facts) for facts in world.facts.values()) == 1920


def test_values_that_are_entities_exist_and_are_of_the_right_kind():
    world = home_world()
    for name, facts in world.facts.items():
        for attribute, kind in ENTITY_VALUED.items():
            if attribute in facts:
                assert world.kind_of[facts[attribute]] == kind
                assert facts[attribute] != name


def test_another_seed_is_another_world():
    assert World(0).facts != World(1).facts


def test_the_same_entities_can_have_other_facts():
    home, retold = World(0), World(0, facts_seed=7)
    assert retold.names == home.names
    assert retold.facts != home.facts


def test_no_value_stands_in_a_template_or_in_another_value():
    values = [(pool, value) for pool, values in POOLS.items() for value in values]
    for pool, value in values:
        for template in _templates():
            assert not states(template, value), (pool, value, template)
        for other_pool, other in values:
            assert (pool, value) == (other_pool, other) or not states(other, value), (
                pool,
                value,
                other_pool,
                other,
            )


def _templates():
    for kind in KINDS.values():
        for attribute in kind.attributes.values():
            for template in (*attribute.sentences, *attribute.first_person, *attribute.code, attribute.label):
                yield re.sub(r"\{[^}]*\}", "0", template)
    for _, _, _, sentences in shared.STORY_LINES:
        yield from (re.sub(r"\{[^}]*\}", "0", sentence) for sentence in sentences)
    for sentences in shared.COMPARE_LINES.values():
        yield from (re.sub(r"\{[^}]*\}", "0", sentence) for sentence in sentences)
