"""The evaluation runs from the command line and ends with one JSON object that has the announced figures."""

import json

from engine.family import path
from training.family.evaluate import main

FIGURES = {"target_facts", "small_facts", "accept_greedy", "accept_t1", "expand_facts", "sketch_ratio"}


def test_a_model_accepts_all_of_its_own_drafts(capsys):
    small = str(path("small"))
    arguments = ["--target", small, "--small", small, "--facts", "8", "--answers", "6"]
    main([*arguments, "--threads", "1"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["benchmark"] == "family"
    figures = result["figures"]
    assert figures.keys() >= FIGURES
    assert figures["target_facts"] == figures["small_facts"]
    assert figures["accept_greedy"] == 1
    assert figures["accept_t1"] > 0.9999
    assert all(0 <= figures[name] <= 1 for name in FIGURES - {"sketch_ratio"})
