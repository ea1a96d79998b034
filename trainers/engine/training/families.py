"""Rows of a batch that begin alike: in training, too, what they share is computed once.

A ``Family`` is rows that go through the model together: first the ``stem`` that all begin with,
then each row's ``tail``, which sees the stem and itself; equal rows have one. The gradient is that
of the rows one by one, up to rounding (Prefix Grouper, arXiv:2506.05433).

Shapes: T tokens a row, N tokens of all rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from evert.trainers.engine.sampling.prefix_cache import in_line

_MOST_ROWS = 32  # Rows of a family: more would save little, and finding them is quadratic
_PRICE = 16  # Tokens that a family must save, for what is done of it twice
_SEEN_AGAIN = 16  # A tail's copy of its stem's keys and values weighs one part in so many


@dataclass(frozen=True)
class Family:
    """Rows that go through the model together."""

    rows: list[int]  # Their numbers
    stem: int  # Tokens that they begin with alike; all of them where the rows are one or equal
    tail: int  # Tokens of the longest tail
    tails: int  # Tails that differ; none where no row goes on


@dataclass(frozen=True)
class Folded:
    """Rows as they go through the model."""

    stems: list[np.ndarray]
    tails: list[np.ndarray]
    owners: list[int]  # For each tail, the number of its stem
    places: np.ndarray  # [N] of each token of each row, among the stems', then the tails'


def families(rows: Sequence[np.ndarray]) -> list[Family]:
    """Divide rows among families, so that the fewest tokens are computed."""
    order, alike = in_line(rows)
    saved, begins = [0], [0]
    for end in range(1, len(order) + 1):
        best, at, low = saved[-1], end - 1, len(rows[order[end - 1]])
        for first in range(end - 2, max(-1, end - 1 - _MOST_ROWS), -1):
            low = min(low, alike[first + 1])
            if not low:
                break
            whole = saved[first] + (end - first - 1) * low - _PRICE
            if whole > best:
                best, at = whole, first
        saved.append(best)
        begins.append(at)
    found: list[Family] = []
    end = len(order)
    while end:
        members = order[begins[end] : end]
        found.append(_family(rows, members, min(alike[begins[end] + 1 : end], default=None)))
        end = begins[end]
    return found


def cut(rows: Sequence[np.ndarray], budget: int) -> list[list[int]]:
    """Cut rows into parts of at most ``budget`` tokens, padding included; a longer one is alone."""
    fitting = [part for family in families(rows) for part in _halved(rows, family, budget)]
    total = sum(_size([family]) for family in fitting)
    most = budget
    if total > budget // 2:
        # An even number of parts: two cores have as much to do.
        parts = 2 * -(-total // (2 * budget))
        most = min(budget, total // parts + max(_size([family]) for family in fitting) // 2)
    found: list[list[Family]] = []
    for family in sorted(fitting, key=lambda family: (-family.tail, -family.stem)):
        if not found or _size([*found[-1], family]) > most:
            found.append([])
        found[-1].append(family)
    return [[row for family in part for row in family.rows] for part in found]


def fold(rows: Sequence[np.ndarray]) -> Folded:
    """Lay rows out as they go through the model."""
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


def _halved(rows: Sequence[np.ndarray], family: Family, budget: int) -> Iterator[Family]:
    if len(family.rows) == 1 or _size([family]) <= budget:
        yield family
        return
    half = len(family.rows) // 2
    for members in (family.rows[:half], family.rows[half:]):
        stem = family.stem if len(members) > 1 else None
        yield from _halved(rows, _family(rows, members, stem), budget)


def _size(found: Sequence[Family]) -> int:
    """Tokens of a part, padding included."""
    stem, tail = max(f.stem for f in found), max(f.tail for f in found)
    tails = sum(f.tails for f in found)
    return len(found) * stem + tails * tail + tails * (stem + tail) // _SEEN_AGAIN
