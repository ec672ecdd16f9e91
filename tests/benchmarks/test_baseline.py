"""Two commits of one tree, measured in turns; on a repository made for it."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tandem.benchmarks import baseline
from tandem.benchmarks.baseline import Failed, Run, Side

SAYS = "import json, house; print('a line before'); print(json.dumps({'colour': house.COLOUR}))"
BUSY = "import time\nwhile time.process_time() < 0.3: pass\nprint('{}')"
IDLE = "import time\ntime.sleep(0.3)\nprint('{}')"


def _git(folder: Path, *command: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *command], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """`house.py` is red in the first commit, tagged base, and blue since."""
    folder = tmp_path / "repository"
    folder.mkdir()
    _git(folder, "init", "--quiet")
    for colour in ("red", "blue"):
        (folder / "house.py").write_text(f"COLOUR = {colour!r}\n")
        _git(folder, "add", ".")
        _git(folder, "commit", "--quiet", "-m", colour)
        if colour == "red":
            _git(folder, "tag", "base")
    return folder


def test_each_side_imports_its_own_tree(repository: Path) -> None:
    with baseline.worktree("base", repository) as tree:
        assert tree is not None
        new, old = Side(SAYS, repository), Side(SAYS, tree)
        here, there = baseline.alternate(new, old, 2, "houses")
    assert [run.said for run in here] == [{"colour": "blue"}] * 2
    assert [run.said for run in there] == [{"colour": "red"}] * 2


def test_a_module_is_found_where_a_tree_has_it(repository: Path) -> None:
    assert baseline.module(repository, "tandem.house", "house") == "house"
    with pytest.raises(LookupError, match=r"tandem\.house, garden"):
        baseline.module(repository, "tandem.house", "garden")


def test_the_worktree_is_gone_afterwards_even_after_an_error(repository: Path) -> None:
    (repository / "house.py").write_text("COLOUR = 'green'\n")  # what is not committed stays as it is
    trees: list[Path] = []

    def interrupted() -> None:
        with baseline.worktree("base", repository) as tree:
            assert tree is not None
            trees.append(tree)
            (tree / "left.over").touch()
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        interrupted()
    assert not trees[0].exists()
    assert len(_git(repository, "worktree", "list").splitlines()) == 1
    assert (repository / "house.py").read_text() == "COLOUR = 'green'\n"
    assert _git(repository, "branch", "--list").count("\n") == 0


def test_a_commit_that_is_not_there_is_said_in_a_line(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with baseline.worktree("653c466", repository) as tree:
        assert tree is None
    said = capsys.readouterr().err
    assert "no history here with commit 653c466" in said
    assert said.count("\n") == 1


def test_no_commit_is_no_worktree(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with baseline.worktree("", repository) as tree:
        assert tree is None
    assert capsys.readouterr().err == ""


def test_the_sides_take_turns_at_being_first(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    new, old = (
        Side(f"with open({str(diary)!r}, 'a') as file: file.write({name!r})\nprint('{{}}')", tmp_path)
        for name in "no"
    )
    baseline.alternate(new, old, 4, "turns")
    assert diary.read_text() == "onnoonno"


def test_without_an_old_side_only_the_new_one_runs(tmp_path: Path) -> None:
    here, there = baseline.alternate(Side("print('{}')", tmp_path), None, 3, "alone")
    assert (len(here), there) == (3, [])


def test_cpu_time_is_the_processes_own_and_wall_time_the_clocks(tmp_path: Path) -> None:
    started = time.process_time()
    busy, idle = Side(BUSY, tmp_path).run(), Side(IDLE, tmp_path).run()
    assert time.process_time() - started < busy.cpu_s  # not this process's
    assert busy.cpu_s >= 0.3
    assert idle.wall_s >= 0.3
    assert busy.cpu_s - idle.cpu_s > 0.1  # what both need to start, and the sleep, are no difference


def test_cpu_time_counts_what_a_side_starts_itself(tmp_path: Path) -> None:
    code = (
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}], stdout=-3)\nprint('{{}}')"
    )
    assert Side(code, tmp_path).run().cpu_s >= 0.3


def test_an_error_of_a_side_says_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="ZeroDivisionError"):
        Side("1 / 0", tmp_path).run()


def test_ratios_are_of_pairs() -> None:
    new, old = ([Run({}, cpu_s, 0.0) for cpu_s in found] for found in ((1.0, 3.0), (2.0, 4.0)))
    assert baseline.ratios(new, old, baseline.seconds) == [0.5, 0.75]
