"""Replies that a renderer's parser would take ages for.

The Cookbook's parsers look for tool calls and thoughts by patterns such as
``<tool_call>(.*?)</tool_call>``, which read on to the end of the text from every mark that is never
closed, and over and over long white space within. A policy that has begun to repeat itself says
thousands of them, and the whole process would wait: Python's ``re`` lets no other thread go on.
"""

import re
from collections import Counter

from tinker_cookbook.exceptions import RendererError

CHECKED_TOKENS = 300  # shorter replies take no time, whatever they say
MOST_STEPS = 10_000_000  # characters that a parser may look at: about a tenth of a second

_MARK = re.compile(
    r"<(/?)((?:[|｜][^\s<>/]{1,40})|think|tool_call|function|parameter|arg_key|arg_value)"
)
_WHITE_SPACE = re.compile(r"(>?)(\s{100,})")


def check_marks(text: str) -> None:
    """Check that a reply's marks are no more than a parser can cope with."""
    marks = Counter(_MARK.findall(text))
    unclosed = max((n - marks["/", name] for (end, name), n in marks.items() if not end), default=0)
    steps = unclosed * len(text)
    for mark, spaces in _WHITE_SPACE.findall(text) if marks else ():
        # tried from each to each, and once more from each where they follow a mark for nothing
        steps = max(steps, len(spaces) ** (3 if mark and unclosed else 2))
    if steps > MOST_STEPS:
        raise RendererError(
            f"A reply of {len(text)} characters cannot be parsed: of its marks {unclosed} are not "
            "closed, or it holds long white space."
        )
