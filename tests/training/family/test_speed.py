"""The family's speed is measured from the command line."""

import json

import pytest

from tandem.training.family.speed import main


@pytest.mark.slow
def test_every_figure_is_of_a_real_run(capsys):
    main(["tiny", "medium", "--questions", "2", "--rounds", "1"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["figures"].keys() == {"tiny", "medium"}
    for found in result["figures"].values():
        assert found.keys() == {"load_s", "tokens_per_s", "tokens_per_s_together"}
        assert all(value > 0 for value in found.values())


def test_a_model_outside_the_family_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["large"])
    assert "not in the family: large" in capsys.readouterr().err
