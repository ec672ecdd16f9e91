"""Verification: exact for greedy, and with chance the output is distributed as the target's own.

The statistical tests have fixed seeds, so they are deterministic; each has wrong verifiers beside it that
the same statistic must reject.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.base import Sampling
from tandem.engine.torch import verification
from tandem.engine.torch.rng import Purpose, uniforms
from tandem.engine.torch.sampling import distributions, draw, sparse
from tandem.engine.torch.verification import Window, verify
from tests.effort import slow_after

N = 20_000
LEVEL = 0.001
Verifier = Callable[[torch.Tensor, Sequence[Window]], list[tuple[int, int]]]


# -- greedy --------------------------------------------------------------------------------------------


@given(st.data())
def test_greedy_accepts_exactly_the_matching_prefix(data: st.DataObject):
    vocab = 5
    best, windows, expected = [], [], []
    for _ in range(data.draw(st.integers(1, 4))):
        own = data.draw(st.lists(st.integers(0, vocab - 1), min_size=1, max_size=6))
        matching = data.draw(st.integers(0, len(own) - 1))
        drafts = own[:-1]
        if matching < len(drafts):
            drafts[matching] = (drafts[matching] + data.draw(st.integers(1, vocab - 1))) % vocab
        best += own
        expected.append((matching, own[matching]))
        windows.append(Window(drafts, data.draw(st.integers(0, 9)), Sampling()))
    logits = torch.nn.functional.one_hot(torch.tensor(best), vocab).float() * 3
    assert verify(logits, windows) == expected
    # beside a sampled session the other code path decides, to the same verdicts; stated q makes no odds
    sampled = Window([], 0, Sampling(temperature=1.0))
    even = np.full((6, vocab), 1 / vocab, "f4")
    stated = [
        replace(w, q_ids=np.tile(np.arange(vocab), (len(w.drafts), 1)), q_probs=even[: len(w.drafts)])
        for w in windows
    ]
    for mixed in (windows, stated):
        assert verify(torch.cat([logits, torch.zeros(1, vocab)]), [*mixed, sampled])[:-1] == expected


# -- the statistic -------------------------------------------------------------------------------------


def p_value(counts: np.ndarray, probs: np.ndarray) -> float:
    """Chance of so large a chi-square if `counts` were drawn from `probs`; cells that cannot occur must be
    empty, rare ones are pooled."""
    expected = probs.ravel() * counts.sum()
    counts = counts.ravel()
    if counts[expected == 0].any():
        return 0.0
    rare = expected < 5
    cells = [(counts[~rare], expected[~rare])]
    if expected[rare].sum() > 0:
        cells.append((counts[rare].sum(keepdims=True), expected[rare].sum(keepdims=True)))
    seen, wanted = (np.concatenate(part) for part in zip(*cells, strict=True))
    statistic = ((seen - wanted) ** 2 / wanted).sum()
    half = torch.tensor([(len(seen) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def test_the_statistic_itself():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(30))
    fair = [p_value(rng.multinomial(N, probs), probs) for _ in range(300)]
    assert 0.4 < np.mean(fair) < 0.6
    assert min(fair) > LEVEL / 10
    tilted = probs * np.linspace(0.9, 1.1, 30)
    assert p_value(rng.multinomial(N, tilted / tilted.sum()), probs) < LEVEL
    known = torch.special.gammaincc(torch.tensor(5.0), torch.tensor(18.307 / 2))  # 10 degrees of freedom
    assert float(known) == pytest.approx(0.05, abs=1e-4)


# -- wrong verifiers, which the statistic must reject --------------------------------------------------


def accepts_always(logits: torch.Tensor, windows: Sequence[Window]) -> list[tuple[int, int]]:
    certain = [
        replace(w, q_ids=np.array([[d] for d in w.drafts]), q_probs=np.full((len(w.drafts), 1), 1e-30, "f4"))
        for w in windows
    ]
    return verify(logits, certain)


def takes_the_target_instead_of_the_residual(
    logits: torch.Tensor, windows: Sequence[Window]
) -> list[tuple[int, int]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification, "_subtract", lambda row, window, index: None)
        return verify(logits, windows)


def reuses_the_accepting_coin(logits: torch.Tensor, windows: Sequence[Window]) -> list[tuple[int, int]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification, "uniforms", lambda s, p, purpose: uniforms(s, p, Purpose.ACCEPT))
        return verify(logits, windows)


WRONG = [accepts_always, takes_the_target_instead_of_the_residual, reuses_the_accepting_coin]


# -- a tiny language: the next token depends on the last one alone -------------------------------------

VOCAB = 5


def chain(seed: int, concentration: float) -> np.ndarray:
    """Transition probabilities [VOCAB, VOCAB]."""
    return np.random.default_rng(seed).dirichlet([concentration] * VOCAB, VOCAB)


P, Q = chain(1, 1.0), chain(2, 1.0)
SETTINGS = {
    "plain": Sampling(temperature=1.0),
    "warm, filtered": Sampling(temperature=1.4, top_k=4, top_p=0.93),
    "cold": Sampling(temperature=0.6),
}


def after(rows: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Return the distribution of each row's sampling, from the definition of temperature, top_k and top_p."""
    result = np.zeros_like(rows)
    for out, row in zip(result, rows ** (1 / sampling.temperature), strict=True):
        kept = np.argsort(-row)[: sampling.top_k or None]
        share = row[kept] / row[kept].sum()
        kept = kept[: 1 + int((np.cumsum(share)[:-1] < sampling.top_p).sum())]
        out[kept] = row[kept] / row[kept].sum()
    return result


def drafted(
    last: np.ndarray, position: np.ndarray, seeds: np.ndarray, gamma: int, sampling: Sampling
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """γ tokens a session from Q by the DRAFT stream, as the engine draws them: ids, and q sparse."""
    empty = np.zeros((len(last), 0, VOCAB))
    ids, q_ids, q_probs = [empty[:, :, 0].astype(int)], [empty.astype("i4")], [empty.astype("f4")]
    for j in range(gamma):
        logits = torch.from_numpy(np.log(Q[last])).float()
        q = sparse(distributions(logits, [sampling] * len(last)))
        drawn = draw(q[1], uniforms(seeds, position + j, Purpose.DRAFT))
        last = q[0].gather(1, drawn[:, None]).squeeze(1).numpy()
        ids.append(last[:, None])
        q_ids.append(q[0].int().numpy()[:, None])
        q_probs.append(q[1].numpy()[:, None])
    return np.concatenate(ids, 1), np.concatenate(q_ids, 1), np.concatenate(q_probs, 1)


def speculate(
    verifier: Verifier, sampling: Sampling, gammas: Sequence[int], length: int, point_mass: bool = False
) -> np.ndarray:
    """The first `length` output tokens of N sessions, seeds 0 .. N − 1, all beginning after token 0. γ of the
    rounds goes round `gammas`."""
    seeds = np.arange(N)
    output = np.full((N, length), -1)
    done = np.zeros(N, int)
    turn = 0
    while (active := np.flatnonzero(done < length)).size:
        gamma = gammas[turn % len(gammas)]
        turn += 1
        last = np.where(done[active] > 0, output[active, done[active] - 1], 0)
        ids, q_ids, q_probs = drafted(last, done[active], seeds[active], gamma, sampling)
        context = np.concatenate([last[:, None], ids], axis=1)
        logits = torch.from_numpy(np.log(P[context.reshape(-1)])).float()
        windows = [
            Window(
                ids[i].tolist(),
                int(done[s]),
                msgspec.structs.replace(sampling, seed=int(seeds[s])),
                None if point_mass else q_ids[i],
                None if point_mass else q_probs[i],
            )
            for i, s in enumerate(active)
        ]
        for i, (s, (accepted, own)) in enumerate(zip(active, verifier(logits, windows), strict=True)):
            new = [*windows[i].drafts[:accepted], own][: length - done[s]]
            output[s, done[s] : done[s] + len(new)] = new
            done[s] += len(new)
    return output


def joint_p_value(output: np.ndarray, sampling: Sampling) -> float:
    """Return the p-value of the joint distribution of all the columns."""
    length = output.shape[1]
    transition = after(P, sampling)
    probs = transition[0]
    for _ in range(length - 1):
        probs = probs[..., None] * transition
    cells = np.ravel_multi_index(tuple(output.T), (VOCAB,) * length)
    return p_value(np.bincount(cells, minlength=VOCAB**length), probs)


def slow(*case: object) -> object:
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize("name", slow_after(1, reversed(SETTINGS)))
@pytest.mark.parametrize("gammas", [slow((1,)), slow((2,)), (3, 0, 1)], ids=str)
def test_joint_distribution_of_the_first_three_tokens(name: str, gammas: tuple[int, ...]):
    output = speculate(verify, SETTINGS[name], gammas, 3)
    assert joint_p_value(output, SETTINGS[name]) > LEVEL


def test_joint_distribution_with_point_masses():
    """Drafts drawn from Q whose distributions are not sent."""
    assert joint_p_value(speculate(verify, SETTINGS["plain"], (2,), 3, True), SETTINGS["plain"]) > LEVEL


@pytest.mark.parametrize("wrong", slow_after(1, WRONG))
def test_a_wrong_verifier_is_found_out(wrong: Verifier):
    """The negative control: the same samples and statistic tell a biased verifier."""
    assert joint_p_value(speculate(wrong, SETTINGS["plain"], (2,), 2), SETTINGS["plain"]) < LEVEL


# -- one token, dense distributions over a larger vocabulary -------------------------------------------


def one_token(verifier: Verifier, p: np.ndarray, q: np.ndarray, stated: bool) -> np.ndarray:
    """The first output token of N sessions whose only draft is drawn from q."""
    ids, probs = sparse(torch.from_numpy(q).float()[None])
    probs = probs.expand(N, -1)
    drawn = draw(probs, uniforms(range(N), [0] * N, Purpose.DRAFT))
    drafts = ids[0][drawn].tolist()
    q_ids, q_probs = ids.int().numpy(), probs[:1].numpy()
    windows = [
        Window([d], 0, Sampling(temperature=1.0, seed=i), *((q_ids, q_probs) if stated else (None, None)))
        for i, d in enumerate(drafts)
    ]
    with np.errstate(divide="ignore"):
        logits = torch.from_numpy(np.log(p)).float()
    verdicts = verifier(logits.expand(2 * N, -1), windows)
    return np.array([d if accepted else own for d, (accepted, own) in zip(drafts, verdicts, strict=True)])


def pair(kind: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    p, q = rng.dirichlet(np.full(40, 0.7)), rng.dirichlet(np.full(40, 0.7))
    if kind == "disjoint in part":
        p[:15], q[-15:] = 0.0, 0.0
    elif kind == "equal":
        q = p
    elif kind == "near":
        q = p * rng.uniform(0.8, 1.25, 40)
    return p / p.sum(), q / q.sum()


KINDS = ["random", "disjoint in part", "equal", "near"]


@pytest.mark.parametrize("stated", [True, False], ids=["distributions", "point masses"])
@pytest.mark.parametrize("kind", slow_after(2, KINDS))
def test_one_token_is_the_targets(kind: str, stated: bool):
    p, q = pair(kind)
    tokens = one_token(verify, p, q, stated)
    assert p_value(np.bincount(tokens, minlength=len(p)), p) > LEVEL


def test_always_the_same_draft_as_a_point_mass():
    p, _ = pair("random")
    q = np.eye(len(p))[int(p.argmax())]
    assert p_value(np.bincount(one_token(verify, p, q, False), minlength=len(p)), p) > LEVEL
    assert p_value(np.bincount(one_token(verify, p, q, True), minlength=len(p)), p) > LEVEL


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_verifier_is_found_out_on_one_token(wrong: Verifier):
    p, q = pair("random")
    tokens = one_token(wrong, p, q, True)
    assert p_value(np.bincount(tokens, minlength=len(p)), p) < LEVEL


def test_a_draft_outside_its_stated_support_does_no_harm():
    """A drafter that states other distributions than it drew from biases only what it may; a draft that it
    says it could not have drawn counts as a point mass."""
    p, _ = pair("random")
    draft = int(p.argmax())
    others = np.int32([[t for t in range(len(p)) if t != draft][:8]])
    windows = [
        Window([draft], 0, Sampling(temperature=1.0, seed=i), others, np.full((1, 8), 1 / 8, "f4"))
        for i in range(N)
    ]
    verdicts = verify(torch.from_numpy(np.log(p)).float().expand(2 * N, -1), windows)
    tokens = [draft if accepted else own for accepted, own in verdicts]
    assert p_value(np.bincount(tokens, minlength=len(p)), p) > LEVEL


def test_a_verdict_does_not_depend_on_its_batch():
    rng = np.random.default_rng(3)
    windows, rows = [], []
    for i in range(40):
        gamma = int(rng.integers(0, 5))
        q = rng.dirichlet(np.ones(VOCAB), gamma).astype("f4")
        drafts = [int(rng.choice(VOCAB)) for _ in range(gamma)]
        ids = np.tile(np.arange(VOCAB, dtype=np.int32), (gamma, 1))
        temperature, top_k = rng.choice([0.0, 0.7, 1.0]), rng.choice([0, 3])
        sampling = Sampling(temperature=float(temperature), seed=i, top_k=int(top_k))
        windows.append(Window(drafts, i, sampling, *((ids, q) if gamma and i % 3 else (None, None))))
        rows.append(torch.from_numpy(rng.normal(0, 2, (gamma + 1, VOCAB))).float())
    together = verify(torch.cat(rows), windows)
    assert together == [verify(r, [w])[0] for r, w in zip(rows, windows, strict=True)]


@pytest.mark.parametrize("drafts", [[1], [3, 0], [2, 2, 4, 1]])
def test_point_masses_leave_a_seeds_tokens_as_they_are(drafts: list[int]) -> None:
    """Drafts decide how many tokens a step gives, not which."""
    logits = torch.from_numpy(np.log(chain(3, 1.0))).float()[[0, *drafts]]
    for seed in range(200):
        sampling = Sampling(temperature=1.0, seed=seed)
        ((accepted, own),) = verify(logits, [Window(drafts, 5, sampling)])
        alone = [verify(logits[j : j + 1], [Window([], 5 + j, sampling)])[0][1] for j in range(accepted + 1)]
        assert [*drafts[:accepted], own] == alone
