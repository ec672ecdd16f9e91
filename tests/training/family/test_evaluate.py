"""The evaluation runs from the command line and ends with one JSON object that has the announced figures."""

import json

import pytest

from tandem.engine.family import path
from tandem.training.family.evaluate import main

OF_THE_TARGET = {"target_facts", "target_answer_facts", "answer_tokens", "sketch_ratio", "length_error"}
OF_A_DEVICE = {
    "accept_greedy",
    "accept_t1",
    "facts",
    "answer_facts",
    "expand_facts",
    "expand_row_facts",
    "expand_true_facts",
}


@pytest.mark.slow
def test_a_model_accepts_all_of_its_own_drafts_and_not_all_of_anothers(capsys):
    target, other = str(path("small")), str(path("tiny"))
    arguments = ["--target", target, "--devices", target, other, "--facts", "8", "--answers", "6"]
    main([*arguments, "--threads", "1"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["benchmark"] == "family"
    figures = result["figures"]
    of_devices = {f"{name}_{figure}" for name in ("small", "tiny") for figure in OF_A_DEVICE}
    assert figures.keys() == OF_THE_TARGET | of_devices
    assert all(0 <= figures[name] <= 1 for name in of_devices)
    assert figures["target_facts"] == figures["small_facts"]
    assert figures["small_accept_greedy"] == 1
    assert figures["small_accept_t1"] > 0.9999
    assert figures["tiny_accept_greedy"] < 1
