"""Groups rows by common prefixes, so that training computes each prefix only once.

A ``Family`` is a group of rows that run together: first their common prefix, the ``stem``, and then
the ``tail`` of each row, which attends to the stem and itself. Identical tails are computed once.
Up to rounding, the gradient is the same as with separate rows (Prefix Grouper, arXiv:2506.05433).

Shapes: N tokens in all rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from evert.trainers.engine.sampling.prefix_cache import sort_by_tokens

_MAX_FAMILY = 32  # larger families would save little, and the search is quadratic
_PASS_TOKENS = 16  # number of tokens that a family must save to be worth a second pass
_COPY_SHARE = 16  # copying a token's keys and values costs 1/16 as much as computing them


@dataclass(frozen=True)
class Family:
    """Rows that go through the model together."""

    rows: list[int]  # row indices
    stem: int  # length of the common prefix (the full length for a single row or identical rows)
    tail: int  # length of the longest tail
    tails: int  # number of distinct tails; 0 if no row is longer than the stem


@dataclass(frozen=True)
class Folded:
    """Rows laid out as stems and tails."""

    stems: list[np.ndarray]
    tails: list[np.ndarray]
    owners: list[int]  # index of each tail's stem
    places: np.ndarray  # [N] indices of the rows' tokens in the concatenated stems and tails


def families(rows: Sequence[np.ndarray]) -> list[Family]:
    """Group rows into families, minimizing the number of tokens to compute."""
    order, overlaps = sort_by_tokens(rows)
    saved, begins = [0], [0]
    for end in range(1, len(order) + 1):
        best, at, low = saved[-1], end - 1, len(rows[order[end - 1]])
        for first in range(end - 2, max(-1, end - 1 - _MAX_FAMILY), -1):
            low = min(low, overlaps[first + 1])
            if not low:
                break
            total = saved[first] + (end - first - 1) * low - _PASS_TOKENS
            if total > best:
                best, at = total, first
        saved.append(best)
        begins.append(at)
    groups: list[Family] = []
    end = len(order)
    while end:
        members = order[begins[end] : end]
        groups.append(_family(rows, members, min(overlaps[begins[end] + 1 : end], default=None)))
        end = begins[end]
    return groups


def cut(rows: Sequence[np.ndarray], budget: int) -> list[list[int]]:
    """Split rows into parts of at most ``budget`` padded tokens. Each longer row is a part."""
    fitting = [part for family in families(rows) for part in _split_family(rows, family, budget)]
    total = sum(_size([family]) for family in fitting)
    limit = budget
    if total > budget // 2:
        # Use an even number of parts, so that two cores get the same amount of work.
        parts = 2 * -(-total // (2 * budget))
        limit = min(budget, total // parts + max(_size([family]) for family in fitting) // 2)
    bins: list[list[Family]] = []
    for family in sorted(fitting, key=lambda family: (-family.tail, -family.stem)):
        if not bins or _size([*bins[-1], family]) > limit:
            bins.append([])
        bins[-1].append(family)
    return [[row for family in part for row in family.rows] for part in bins]


def fold(rows: Sequence[np.ndarray]) -> Folded:
    """Lay out rows as shared prefixes (stems) and their continuations (tails)."""
    stems: list[np.ndarray] = []
    tails: dict[tuple[int, bytes], tuple[int, np.ndarray]] = {}
    spans: list[tuple[int, int | None]] = [(0, None)] * len(rows)
    for number, family in enumerate(families(rows)):
        stems.append(rows[family.rows[0]][: family.stem])
        for row in family.rows:
            tail = rows[row][family.stem :]
            key = (number, tail.tobytes())
            place = tails.setdefault(key, (len(tails), tail))[0] if len(tail) else None
            spans[row] = number, place
    of_stems = np.cumsum([0, *map(len, stems)])
    of_tails = of_stems[-1] + np.cumsum([0, *(len(tail) for _, tail in tails.values())])
    places = []
    for number, place in spans:
        places.append(np.arange(of_stems[number], of_stems[number + 1]))
        if place is not None:
            places.append(np.arange(of_tails[place], of_tails[place + 1]))
    return Folded(
        stems,
        [tail for _, tail in tails.values()],
        [number for number, _ in tails],
        np.concatenate(places),
    )


def _family(rows: Sequence[np.ndarray], members: list[int], stem: int | None) -> Family:
    longest = max(len(rows[row]) for row in members)
    stem = longest if stem is None else stem
    tails = {rows[row][stem:].tobytes() for row in members} - {b""}
    return Family(members, stem, longest - stem, len(tails))


def _split_family(rows: Sequence[np.ndarray], family: Family, budget: int) -> Iterator[Family]:
    if len(family.rows) == 1 or _size([family]) <= budget:
        yield family
        return
    half = len(family.rows) // 2
    for members in (family.rows[:half], family.rows[half:]):
        stem = family.stem if len(members) > 1 else None
        yield from _split_family(rows, _family(rows, members, stem), budget)


def _size(part: Sequence[Family]) -> int:
    """Return the cost of a part in tokens, including padding."""
    stem, tail = max(f.stem for f in part), max(f.tail for f in part)
    tails = sum(f.tails for f in part)
    return len(part) * stem + tails * tail + tails * (stem + tail) // _COPY_SHARE
