"""Choices turn deltas into pieces: text and origins do not depend on how the deltas are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.app.api.completions.choice import Choice
from tandem.app.api.completions.objects import joined_calls
from tandem.app.api.stats.stats import Timing, stats
from tandem.app.api.tools.answer_reader import AnswerReader
from tandem.app.api.tools.reader import MarkedReader
from tandem.deployments.modes.race.mode import Racing
from tandem.deployments.modes.speculative.mode import Speculation
from tandem.deployments.request.job import Delta, JobStats, Move, figures_by_mode
from tandem.deployments.request.tokenlog import Origin
from tandem.engine.base import TokenLogprob
from tests.app.api.null_backend import EOS, TOKENIZER

tokens = st.lists(st.tuples(st.integers(0, TOKENIZER.vocab_size - 1), st.sampled_from(Origin)), max_size=40)
said = st.text("aé🗼", max_size=20).map(lambda text: [(t, Origin.DRAFT) for t in TOKENIZER.encode(text)])
stops = st.lists(st.sampled_from(["a", "é", "aé", "🗼a", "aaa"]), max_size=3)
cuts = st.lists(st.integers(0, 40), max_size=12)


def feed(log, cuts, stop=(), scored=False, take_always=True, reader=None):
    """Push `log` in deltas cut at the given places; return the choice and its pieces."""
    choice = Choice(TOKENIZER, tuple(stop))
    choice.reader = reader
    places = sorted({min(c, len(log)) for c in cuts} | {0, len(log)})
    deltas = [log[a:b] for a, b in pairwise(places)] or [[]]
    pieces = []
    for n, part in enumerate(deltas):
        last = n == len(deltas) - 1
        scores = [TokenLogprob(-0.5) for _ in part] if scored else None
        delta = Delta([i for i, _ in part], [o for _, o in part], "length" if last else None, logprobs=scores)
        delta.stats = JobStats(mode="cloud") if last else None
        choice.push(delta)
        if take_always or last or choice.finish:
            pieces.append(choice.take())
        if choice.finish:
            break
    return choice, [piece for piece in pieces if piece]


def spread(pieces):
    return [str(origin) for piece in pieces for origin, characters in piece.runs for _ in range(characters)]


@given(tokens, cuts, stops, st.booleans())
def test_any_cut_gives_the_same_answer(log, cuts, stop, scored):
    choice, pieces = feed(log, cuts, stop, scored)
    whole, (piece,) = feed(log, [], stop, scored)
    assert "".join(p.text for p in pieces) == piece.text
    assert spread(pieces) == spread([piece])
    assert [t for p in pieces for t in p.scored] == piece.scored
    assert (choice.tokens, choice.finish) == (whole.tokens, whole.finish)


NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
told = st.lists(st.sampled_from(["<think>", "</think>", NOW, "<tool_call>", "Hi", " é", "\n"]), max_size=7)


def reading(thinks=True):
    return AnswerReader(MarkedReader("<tool_call>", "</tool_call>", frozenset({"now"})), thinks)


@given(told, cuts, st.booleans(), st.sampled_from([(), ("Hi",), ("é\n",)]))
def test_any_cut_is_read_alike(said, cuts, thinks, stop):
    """Tokens with log-probabilities spell the content, whatever else its pieces have, and what is left out at its ends
    is white space; tokens of thoughts are counted."""
    log = [(token, Origin.CLOUD) for token in TOKENIZER.encode("".join(said))]
    choice, pieces = feed(log, cuts, stop, True, reader=reading(thinks))
    whole, (piece,) = feed(log, [], stop, True, reader=reading(thinks))
    for name in ("text", "reasoning"):
        assert "".join(getattr(p, name) for p in pieces) == getattr(piece, name)
    calls = joined_calls(call for p in pieces for call in p.calls)
    assert [call.function.arguments for call in calls] == [call.arguments for call in piece.calls]
    assert all(len({call.index for call in p.calls}) == len(p.calls) for p in pieces), "a part a call"
    scored = [token for p in pieces for token in p.scored]
    assert scored == piece.scored
    assert choice.reasoning_tokens == whole.reasoning_tokens
    shown = TOKENIZER.decode([token.token for token in scored])
    assert "".join(shown.split()) == "".join(piece.text.split()) or "�" in shown + piece.text
    text = TOKENIZER.decode([token for token, _ in log])
    thought = text.partition("</think>") if thinks and text.lstrip().startswith("<think>") else ("", "", "")
    if not stop:
        assert choice.reasoning_tokens == len(TOKENIZER.encode(thought[0] + thought[1]))


def test_tokens_of_a_piece_with_text_and_a_call():
    said = f"<think>Well.</think>\n\nHi. {NOW}"
    log = [(token, Origin.CLOUD) for token in [*TOKENIZER.encode(said), EOS]]
    choice, (piece,) = feed(log, [], scored=True, reader=reading())
    assert (piece.text, piece.reasoning, piece.calls[0].name) == ("Hi.", "Well.", "now")
    assert TOKENIZER.decode([token.token for token in piece.scored]) == "Hi."
    assert choice.reasoning_tokens == len("<think>Well.</think>")


def test_unfinished_thoughts_are_counted():
    log = [(token, Origin.CLOUD) for token in TOKENIZER.encode("<think>Well…")]
    choice, _ = feed(log[:-1], [3, 9], reader=reading())  # the last character is not complete
    assert choice.reasoning_tokens == len(log) - 1


@given(tokens, cuts, stops)
def test_every_character_has_an_origin(log, cuts, stop):
    _, pieces = feed(log, cuts, stop)
    for piece in pieces:
        assert len(piece.text) == sum(characters for _, characters in piece.runs)
        assert all(characters > 0 for _, characters in piece.runs)


@given(said, cuts, stops)
def test_the_text_is_cut_before_the_first_stop_string(log, cuts, stop):
    choice, pieces = feed(log, cuts, stop)
    everything = TOKENIZER.decode([i for i, _ in log])
    text = "".join(p.text for p in pieces)
    assert everything.startswith(text)
    assert choice.finish == ("stop" if any(s in everything for s in stop) else "length")
    assert not any(s in text for s in stop)


@given(tokens, stops)
def test_only_the_last_piece_ends(log, stop):
    _, pieces = feed(log, range(40), stop)
    assert [p.finish is None for p in pieces] == [True] * (len(pieces) - 1) + [False]
    assert [p.stats is None for p in pieces] == [True] * (len(pieces) - 1) + [False]


@given(tokens, cuts)
def test_every_token_is_scored_once(log, cuts):
    _, pieces = feed(log, cuts, scored=True)
    scored = [t for p in pieces for t in p.scored]
    assert [t.token for t in scored] == [i for i, _ in log]
    assert [t.offset for t in scored] == sorted(t.offset for t in scored)


def test_a_character_belongs_to_the_token_that_completes_it():
    first, second = TOKENIZER.encode("é")
    _, (piece,) = feed([(first, Origin.DRAFT), (second, Origin.CORRECTED)], [1], take_always=False)
    assert (piece.text, piece.runs) == ("é", [("corrected", 1)])


@pytest.mark.parametrize("cuts", [[], [2]])
def test_an_unfinished_character_at_the_end_has_an_origin(cuts):
    log = [(TOKENIZER.encode("x")[0], Origin.DRAFT), (TOKENIZER.encode("é")[0], Origin.BONUS)]
    choice = Choice(TOKENIZER)
    if cuts:  # the end comes alone
        choice.push(Delta([i for i, _ in log], [o for _, o in log]))
        choice.push(Delta([], [], "length", stats=JobStats()))
        piece = choice.take()
    else:
        _, (piece,) = feed(log, [])
    assert (piece.text, piece.runs) == ("x\ufffd", [("draft", 1), ("bonus", 1)])


def test_text_that_is_held_back_keeps_its_origin():
    log = [(t, Origin.DRAFT if n < 2 else Origin.BONUS) for n, t in enumerate(TOKENIZER.encode("xENx"))]
    _, pieces = feed(log, [1, 2, 3], ["END"])
    assert [(p.text, p.runs) for p in pieces] == [
        ("x", [("draft", 1)]),
        ("ENx", [("draft", 1), ("bonus", 2)]),
        ("", []),
    ][: len(pieces)]


def test_the_end_token_has_no_text():
    _, (piece,) = feed([(TOKENIZER.encode("x")[0], Origin.CLOUD), (EOS, Origin.CLOUD)], [])
    assert (piece.text, piece.runs, piece.finish) == ("x", [("cloud", 1)], "length")


def test_stats_of_a_choice_that_a_stop_string_ends():
    choice = Choice(TOKENIZER, ("b",))
    known = JobStats("speculative", figures={Speculation.mode: Speculation(rounds=1, drafted=4, accepted=2)})
    origins = [Origin.DRAFT, Origin.DRAFT, Origin.BONUS]
    choice.push(Delta(TOKENIZER.encode("abc"), origins, stats=known))
    stats = choice.take().stats
    assert (stats.mode, stats.tokens, stats.by_origin) == ("speculative", 2, {"draft": 2})
    assert stats.total_s >= stats.ttft_s > 0
    Speculation.of(known).rounds += 1
    assert Speculation.of(stats) == Speculation(rounds=1, drafted=4, accepted=2), "a copy"
    choice.push(Delta([5], [Origin.BONUS], "stop", stats=JobStats()))
    assert choice.take() is None


def test_stats_of_several_jobs():
    lost, better = Move(3, "lost", "device", "b"), Move(5, "better")
    one = JobStats(
        "device", "a", 0.5, 2.0, 20, {Origin.DEVICE: 20}, {"draft": 1.0, "assign": 0.1}, [lost, better]
    )
    two = JobStats("device", "a", 0.2, 3.0, 10, {Origin.DEVICE: 9, Origin.CLOUD: 1}, {"draft": 0.5})
    one.figures["speculative"] = Speculation(rounds=4, drafted=16, accepted=10)
    two.figures["speculative"] = Speculation(rounds=2, drafted=8, accepted=2)
    two.figures["race"] = Racing(failovers=1, migrations=2, migrations_failed=3)
    both = stats([one, two])
    assert (both.mode, both.device, both.replans) == ("device", "a", 1)
    assert both.timing == Timing(ttft_s=0.2, total_s=3.0, stages_s={"draft": 1.5, "assign": 0.1})
    assert (both.tokens.output, both.tokens.by_origin) == (30, {"device": 29, "cloud": 1})
    assert both.modes == {"speculative": Speculation(6, 24, 12), "race": Racing(1, 2, 3)}
    assert (Speculation(6, 24, 12).accepted_per_round, Speculation(6, 24, 12).mean_window) == (2.0, 4.0)


def test_fused_rounds_do_not_count_towards_the_mean_window():
    mixed, alone = (
        JobStats("speculative", "a", figures={"speculative": figures})
        for figures in (
            Speculation(rounds=5, drafted=22, fused_rounds=3, fused_drafted=12, switches=2),
            Speculation(rounds=3, fused_rounds=3),
        )
    )
    both = figures_by_mode([mixed, alone])["speculative"]
    assert isinstance(both, Speculation)
    assert (both.rounds, both.fused_rounds, both.switches, both.mean_window) == (8, 6, 2, 5.0)
    one = figures_by_mode([alone])["speculative"]
    assert isinstance(one, Speculation)
    assert one.mean_window is None


@pytest.mark.parametrize(("chat", "said"), [(True, "Hello  there"), (False, " Hello  there")])
def test_a_message_begins_without_the_space_of_its_first_token(chat: bool, said: str) -> None:
    choice = Choice(TOKENIZER, chat=chat)
    ids = TOKENIZER.encode(" Hello  there")
    for token in ids:
        choice.push(Delta([token], [Origin.CLOUD]))
    choice.push(Delta([], [], "stop"))
    pieces = []
    while (piece := choice.take()) is not None:
        pieces.append(piece)
    assert "".join(piece.text for piece in pieces) == said
    assert sum(characters for piece in pieces for _, characters in piece.runs) == len(said)
