"""Execution optimiser: which sentences of a sketch share a sequence on the device that expands them.

PICE (Zhan et al. 2025), section IV-B. Sentences are independent and can all be expanded at once; but each sequence has
the whole sketch in its prompt, and a batch waits for its longest sequence. So sentences are merged into half as many
groups, and again, as long as the answer will still be in time. A group's sentences are expanded one after another.

Lengths are words or tokens of the sketch's sentences; expansions are assumed proportional to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tandem.policies.sketch.order import list_schedule

Groups = tuple[tuple[int, ...], ...]
"""Groups of sentence indices: each index once, ascending within a group; groups in the order of their first ones."""

MANY = 1 << 20
"""More groups than there are sentences."""


def merge(lengths: Sequence[int], fits: Callable[[Groups], bool], most: int = MANY) -> Groups:
    """Merge as in the paper: in each round the shortest group with the longest, the next shortest with the next
    longest, and so on; of an odd number the one in the middle stays.

    fits: whether the answer is in time with these groups, expanded at once.
    most: most groups that the device expands at once.
    """

    def halved(groups: Groups) -> Groups:
        def length(group: tuple[int, ...]) -> int:
            return sum(lengths[i] for i in group)

        by_length = sorted(groups, key=length)
        count = len(groups)
        pairs = ((*by_length[i], *by_length[-1 - i]) for i in range(count // 2))
        return _in_order((*pairs, *by_length[count // 2 : (count + 1) // 2]))

    return _merge(len(lengths), halved, fits, most)


def merge_for_reader(lengths: Sequence[int], fits: Callable[[Groups], bool], most: int = MANY) -> Groups:
    """Merge for a reader who begins at the front (beyond the paper): as many groups as `merge`, but each sentence in
    turn joins the group that reaches it soonest. So the first sentences are the first of their groups; the paper's
    pairs may let the second sentence wait for the longest of all.

    lengths, fits, most: as in `merge`.
    """

    def halved(groups: Groups) -> Groups:
        return list_schedule(lengths, range(len(lengths)), (len(groups) + 1) // 2).sequences

    return _merge(len(lengths), halved, fits, most)


def _merge(
    sentences: int, halved: Callable[[Groups], Groups], fits: Callable[[Groups], bool], most: int
) -> Groups:
    groups: Groups = tuple((i,) for i in range(sentences))
    while len(groups) > 1:
        fewer = halved(groups)
        if len(groups) <= most and not fits(fewer):
            break
        groups = fewer
    return groups


def _in_order(groups: Sequence[Sequence[int]]) -> Groups:
    return tuple(sorted(tuple(sorted(group)) for group in groups))
