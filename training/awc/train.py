"""Train WC-DNN anew: sweep fixed windows over drawn scenarios, fit the network to what each window costs.

    python -m tandem.training.awc.train [--scenarios 4800] [--epochs 50]

Writes `weights.npz` (a few KB) and `report.json` beside `policies.speculation.awc.network`. The sweep runs as Ray
tasks and is kept in a folder (--work), from which an interrupted training goes on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import nn

from tandem.policies.speculation import awc
from tandem.policies.speculation.arithmetic import MAX_WINDOW
from tandem.policies.speculation.awc.features import CANDIDATE, STATE, features
from tandem.policies.speculation.awc.network import LAYERS, WEIGHTS
from tandem.policies.speculation.window import WindowState
from tandem.simulator.runs.tasks import resumable_map
from tandem.training.awc.scenarios import Outcome, outcome

WIDTH = 24
BATCH = 2048
LEARNING_RATE = 1e-2
HERE = Path(awc.__file__).resolve().parent


class WcDnn(nn.Module):
    """The network that `policies.speculation.awc.network` runs in numpy."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.input = nn.Linear(len(STATE) + len(CANDIDATE), width)
        self.first_a, self.first_b = nn.Linear(width, width), nn.Linear(width, width)
        self.second_a, self.second_b = nn.Linear(width, width), nn.Linear(width, width)
        self.output = nn.Linear(width, 1)
        nn.init.zeros_(self.output.weight)  # training begins at the closed form

    def forward(self, states: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
        """[N, STATE], [N, 12] → [N, 12], the logarithm of every window's cost up to a constant."""
        silu = nn.functional.silu
        windows = torch.arange(1, MAX_WINDOW + 1, dtype=torch.float32)
        own = torch.stack((windows / MAX_WINDOW, (windows == 1).float()), 1)
        x = self.input(
            torch.cat(
                (
                    states[:, None].expand(-1, MAX_WINDOW, -1),
                    own.expand(len(states), -1, -1),
                    expected[:, :, None],
                ),
                2,
            )
        )
        x = x + self.first_b(silu(self.first_a(silu(x))))
        x = x + self.second_b(silu(self.second_a(silu(x))))
        costs: torch.Tensor = expected + self.output(silu(x))[:, :, 0]
        return costs


def fit(
    states: np.ndarray,
    expected: np.ndarray,
    costs: np.ndarray,
    groups: np.ndarray,
    epochs: int,
    seed: int = 0,
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """(parameters, what training says). states: [N, STATE]; expected, costs: [N, 12], logarithms of what the
    closed form expects and of what the simulation found, in relation to the least; groups: [N], the scenario
    of each row: a scenario is either trained on or validated on.

    L1 loss and AdamW as in DSD's paper. Returns the parameters of the epoch whose choices cost least on the
    validation part.
    """
    torch.manual_seed(seed)
    order = np.random.Generator(np.random.PCG64(seed)).permutation(np.unique(groups))
    held = np.isin(groups, order[: len(order) // 10])
    data = [torch.tensor(a, dtype=torch.float32) for a in (states, expected, costs)]
    train, test = ([a[mask] for a in data] for mask in (~held, held))
    network = WcDnn()
    steps = -(-len(train[0]) // BATCH)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=epochs * steps)
    best: dict[str, np.ndarray] = {}
    least = float("inf")
    closed_form = _regret(test[1], test[2])
    for _ in track(range(epochs), "training", console=Console(stderr=True), transient=True):
        network.train()
        for part in torch.randperm(len(train[0])).split(BATCH):
            # what matters is the difference between windows: a common error is none
            error = network(train[0][part], train[1][part]) - train[2][part]
            near = 1.0 / (0.1 + train[2][part])  # costs near the best decide, those far off never do
            loss = (near * (error - error.median(1, keepdim=True).values).abs()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        network.eval()
        with torch.no_grad():
            regret = _regret(network(test[0], test[1]), test[2])
        if regret < least:
            least = regret
            best = {name: value.detach().numpy().copy() for name, value in network.state_dict().items()}
    return best, {
        "validation_regret": least,
        "validation_regret_closed_form": closed_form,
        "rows": float(len(states)),
    }


def _regret(predicted: torch.Tensor, costs: torch.Tensor) -> float:
    """Mean of what the windows predicted best cost beyond the best ones."""
    return float(costs.gather(1, predicted.argmin(1)[:, None]).exp().mean()) - 1


def dataset(outcomes: list[Outcome]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """`states`, `expected`, `costs` and `groups` of `fit`, a row per state of every outcome."""
    states, expected, costs, groups = [], [], [], []
    for found in outcomes:
        relative = np.log(np.array(list(found.cost_s.values())) / found.cost_s[found.best])
        for state in found.states:
            seen, closed_form = features(WindowState(*state))  # type: ignore[arg-type]  # whole numbers are floats
            states.append(seen)
            expected.append(closed_form)
            costs.append(relative)
            groups.append(found.index)
    return np.array(states), np.array(expected), np.array(costs), np.array(groups)


def sweep(count: int, work: Path) -> list[Outcome]:
    """Outcomes of scenarios 0 … count − 1; those found in `work` are not simulated again."""
    items = {index: index for index in range(count)}
    found = resumable_map(outcome, items, lambda one: one.index, Outcome, work / "outcomes.jsonl")
    console = Console(stderr=True)
    return sorted(
        track(found, "scenarios", total=count, console=console, transient=True), key=lambda one: one.index
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenarios", type=int, default=4800)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--work", type=Path, default=Path(".tandem") / "awc", help="where the sweep is kept")
    parser.add_argument("--out", type=Path, default=HERE, help="where weights and report go")
    options = parser.parse_args()
    outcomes = sweep(options.scenarios, options.work)
    parameters, said = fit(*dataset(outcomes), epochs=options.epochs)
    named: dict[str, Any] = {f"{n}.{k}": parameters[f"{n}.{k}"] for n in LAYERS for k in ("weight", "bias")}
    np.savez(options.out / WEIGHTS, **named)
    bests = [found.best for found in outcomes]
    report: dict[str, Any] = {
        "scenarios": len(outcomes),
        "epochs": options.epochs,
        "width": WIDTH,
        "features": [*STATE, *CANDIDATE],
        "best_window_counts": {str(w): bests.count(w) for w in sorted(set(bests))},
        **said,
    }
    (options.out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
