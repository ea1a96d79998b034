"""Rejects replies that a renderer's parser would take too long to parse.

The Cookbook's parsers find tool calls and thoughts with patterns such as
``<tool_call>(.*?)</tool_call>``. For every unclosed mark, such a pattern scans to the end of the
text, and it scans long runs of whitespace many times. A policy that repeats itself may write
thousands of marks, which would freeze the whole process because Python's ``re`` blocks all threads.
"""

import re
from collections import Counter

from tinker_cookbook.exceptions import RendererError

CHECKED_TOKENS = 300  # shorter replies always parse quickly, so they are not checked
MOST_STEPS = 10_000_000  # how many characters a parser may scan (takes about 0.1 s)

_MARK = re.compile(
    r"<(/?)((?:[|｜][^\s<>/]{1,40})|think|tool_call|function|parameter|arg_key|arg_value)"
)
_WHITE_SPACE = re.compile(r"(>?)(\s{100,})")


def check_marks(text: str) -> None:
    """Raise ``RendererError`` if a parser would take too long to find the marks in a reply."""
    marks = Counter(_MARK.findall(text))
    unclosed = max((n - marks["/", name] for (end, name), n in marks.items() if not end), default=0)
    steps = unclosed * len(text)
    for mark, spaces in _WHITE_SPACE.findall(text) if marks else ():
        # Scanning whitespace takes quadratic time. If a mark is unclosed, whitespace after a ">"
        # takes cubic time.
        steps = max(steps, len(spaces) ** (3 if mark and unclosed else 2))
    if steps > MOST_STEPS:
        raise RendererError(
            f"A reply of {len(text)} characters would take too long to parse because {unclosed} of "
            "its marks are not closed or because it contains long runs of whitespace."
        )
