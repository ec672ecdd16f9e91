"""A simulation runs the application's own code in virtual time.

What it promises, each with tests (`tests/simulator/test_invariants.py`, the fourth in `test_foresight.py`):

1. Conservation: every request ends exactly once, and its tokens are those of its trace, each of one origin.
2. Causality: nothing happens before its cause; a reader gets tokens in order, none before the request came.
3. Repeatability: the same configuration gives the same bytes, in any process.
4. No foresight: a policy sees only what has happened; what comes later cannot change an earlier decision.
5. Bytes: what processes hand to links is what links carry.
"""
