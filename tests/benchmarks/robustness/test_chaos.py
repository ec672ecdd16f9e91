"""Seeds are played once for the same code, in other processes; what is broken is said with how to replay it."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from tandem.benchmarks.robustness import chaos
from tandem.benchmarks.robustness.chaos import Played, attempt, code_version, main, play_all
from tandem.benchmarks.robustness.sabotages import Sabotage
from tandem.simulator.chaos import ChaosOutcome, Fault
from tandem.simulator.clock import VirtualLoop


def fake(seed: int) -> ChaosOutcome:
    """Every seventh seed breaks a promise."""
    assert seed < 100, "this one was played before"
    return ChaosOutcome(seed, ["somebody waited"] if seed % 7 == 3 else [], longest_gap_s=seed / 10)


@pytest.mark.usefixtures("cluster")
def test_every_seed_is_played_once(tmp_path: Path) -> None:
    done = tmp_path / "work" / "done.jsonl"
    first = sorted(play_all(range(20), done, fake), key=lambda one: one.seed)
    assert [one.seed for one in first] == list(range(20))
    assert [one.seed for one in first if one.broken] == [3, 10, 17]
    assert first[5] == Played(5, [], 0.5)
    assert sorted(play_all(range(20), done, fake), key=lambda one: one.seed) == first
    assert len(done.read_bytes().splitlines()) == 20


@pytest.mark.usefixtures("cluster")
def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    done = tmp_path / "done.jsonl"
    done.write_bytes(
        b'{"seed":200,"broken":[],"longest_gap_s":1.0}\n'  # fake would not play it
        b'{"seed":7,"broken":[],"longest_gap_s":9.0}\n'  # not asked for
        b'{"seed":5,"broken":["somebo'
    )
    found = {one.seed: one for one in play_all([5, 200], done, fake)}
    assert found == {5: Played(5, [], 0.5), 200: Played(200, [], 1.0)}
    assert [json.loads(line)["seed"] for line in done.read_bytes().splitlines()] == [200, 7, 5]


@pytest.mark.usefixtures("cluster")
def test_a_process_that_fails_is_no_seed_played(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="played before"):
        list(play_all([100], tmp_path / "done.jsonl", fake))
    assert not (tmp_path / "done.jsonl").exists()


def test_changed_code_is_another_version(tmp_path: Path) -> None:
    for package in chaos.PACKAGES:
        (tmp_path / package).mkdir()
    source = tmp_path / "simulator" / "clock.py"
    source.write_text("tick = 1\n")
    (tmp_path / "simulator" / "notes.md").write_text("of no account\n")
    before = code_version(tmp_path)
    (tmp_path / "simulator" / "notes.md").unlink()
    assert code_version(tmp_path) == before
    source.write_text("tick = 2\n")
    assert code_version(tmp_path) != before
    source.write_text("tick = 1\n")
    assert code_version(tmp_path) == before
    source.rename(tmp_path / "engine" / "clock.py")
    assert code_version(tmp_path) != before


def _run_for_ever(seed: int) -> ChaosOutcome:
    async def waits_for_nothing() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.get_running_loop().create_task(waits_for_nothing())

    VirtualLoop().run(main())  # type: ignore[abstract]
    return ChaosOutcome(seed)


def test_a_seed_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos, "play", _run_for_ever)
    monkeypatch.setattr(chaos, "STUCK_S", 0.2)
    assert attempt(4).broken == ["still computing after 0.2 s"]
    assert not logging.root.manager.disable
    monkeypatch.setattr(chaos, "play", ChaosOutcome)
    assert attempt(4).broken == []


def test_one_seed_is_told_in_full(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chaos, "play", lambda seed: ChaosOutcome(seed, faults=[Fault(1.5, "cut", 2, 3.25)]))
    main(["--seed", "8"])
    said = capsys.readouterr().out
    assert "Seed 8" in said
    assert all(part in said for part in ("1.50", "cut", "3.25", "All promises were kept."))
    monkeypatch.setattr(chaos, "play", lambda seed: ChaosOutcome(seed, broken=["tasks are left: x"]))
    with pytest.raises(SystemExit) as ended:
        main(["--seed", "8"])
    assert ended.value.code == 1
    assert "tasks are left: x" in capsys.readouterr().out


def test_the_figures_and_how_to_replay_what_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked: list[Path] = []

    def play_all(seeds: range, done: Path) -> object:
        asked.append(done)
        return iter([Played(seed, ["somebody waited"] * (seed == 3), 2.0 + seed) for seed in seeds])

    monkeypatch.setattr(chaos, "play_all", play_all)
    with pytest.raises(SystemExit) as ended:
        main(["--seeds", "5", "--work", str(tmp_path)])
    assert ended.value.code == 1
    assert asked == [tmp_path / f"{code_version()}.jsonl"]
    said = capsys.readouterr().out
    assert "tandem benchmark chaos --seed 3" in said
    assert "--seed 4" not in said
    figures = {"seeds": 5, "failed": 1, "longest_gap_s": 6.0}
    assert json.loads(said.splitlines()[-1]) == {"benchmark": "chaos", "figures": figures}
    main(["--seeds", "2", "--work", str(tmp_path)])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]["failed"] == 0


def test_what_is_seen_of_sabotages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown_by(*seeds: int) -> Sabotage:
        return Sabotage("nobody waits", "waited", 0, lambda seed: ["somebody waited"] * (seed in seeds), list)

    monkeypatch.setattr(chaos, "ray_map", lambda function, items, chunk: map(function, items))
    monkeypatch.setattr(chaos, "SABOTAGES", [shown_by(3, 5), shown_by(199), shown_by(200)])
    with pytest.raises(SystemExit) as ended:
        main(["--sabotages"])
    assert ended.value.code == 1
    said = capsys.readouterr().out
    figures = {"sabotages": 3, "sabotages_found": 2, "most_seeds": 200}
    assert json.loads(said.splitlines()[-1]) == {"benchmark": "chaos", "figures": figures}
    assert "… waited …" in said
    assert not logging.root.manager.disable
    monkeypatch.setattr(chaos, "SABOTAGES", [shown_by(0)])
    main(["--sabotages"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]["most_seeds"] == 1
