"""Rejects replies that would block a renderer's parser.

The Cookbook's parsers find tool calls and thoughts by patterns such as
``<tool_call>(.*?)</tool_call>``. From every unclosed mark, such a pattern reads to the end of the
text; it also reads long white space many times. A policy that repeats itself may write thousands of
marks, and the whole process would wait, since Python's ``re`` blocks all threads.
"""

import re
from collections import Counter

from tinker_cookbook.exceptions import RendererError

CHECKED_TOKENS = 300  # replies up to this length always parse fast
MOST_STEPS = 10_000_000  # characters that a parser may read, in about a tenth of a second

_MARK = re.compile(
    r"<(/?)((?:[|｜][^\s<>/]{1,40})|think|tool_call|function|parameter|arg_key|arg_value)"
)
_WHITE_SPACE = re.compile(r"(>?)(\s{100,})")


def check_marks(text: str) -> None:
    """Raise a ``RendererError`` if a reply's marks would take a parser too long."""
    marks = Counter(_MARK.findall(text))
    unclosed = max((n - marks["/", name] for (end, name), n in marks.items() if not end), default=0)
    steps = unclosed * len(text)
    for mark, spaces in _WHITE_SPACE.findall(text) if marks else ():
        # Patterns take quadratic time; after a mark, cubic time if any mark is unclosed.
        steps = max(steps, len(spaces) ** (3 if mark and unclosed else 2))
    if steps > MOST_STEPS:
        raise RendererError(
            f"A reply of {len(text)} characters would take too long to parse: {unclosed} of its "
            "marks are not closed, or it contains long white space."
        )
