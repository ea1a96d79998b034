"""Which answers a scorer of reasoning-gym's may read: nine of them evaluate an answer as Python.

Four call ``eval``, and five ``sympy.parse_expr``, which calls it, too, with all of Python's own
functions at hand. They get what is made of harmless signs alone: no calls but of functions of
mathematics, no power that could take long. Anything else is scored 0.
"""

import re

LONGEST = 2_000
"""Signs of an answer."""

LITERALS = {"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"}
"""Texts and lists: nothing is called or computed without a bracket, a brace or an operator."""

SUMS = {"countdown", "puzzle24"}
"""Numbers and the four operators."""

TERMS = {"intermediate_integration", "polynomial_multiplication", "simple_integration"}
"""Powers and functions of symbols, too."""

_LITERAL = re.compile(r"[\w\s\[\],'\".+-]*", re.ASCII)
_SUM = re.compile(r"(?:[\d\s+\-/().]|\*(?!\*))*", re.ASCII)
_TERM = re.compile(r"[\w\s+\-*/(),.^=]*", re.ASCII)
_FUNCTIONS = re.compile(
    r"[A-Za-z]|a?(?:sin|cos|tan)h?|sec|csc|cot|exp|log|ln|sqrt|pi|Abs|erf|Si|Ci|Integral"
)
_POWER = re.compile(
    r"(\w|\))\s*(?:\*\*|\^)\s*(?:\d{1,2}(?![\d.])|\(-?\d{1,2}(?:/\d{1,2})?\))", re.ASCII
)
_COMPUTED = 2
"""Powers of what stands in brackets: each multiplies the length of what is computed."""


def may_be_read(generator: str, answer: str) -> bool:
    """Whether the scorer of a generator may read an answer."""
    if len(answer) > LONGEST:
        return False
    if generator in LITERALS:
        return _LITERAL.fullmatch(answer) is not None
    if generator in SUMS:
        return _SUM.fullmatch(answer) is not None
    return generator not in TERMS or _is_term(answer)


def _is_term(answer: str) -> bool:
    names = re.findall(r"[A-Za-z_]\w*", answer)
    powers = [found[1] for found in _POWER.finditer(answer)]
    return (
        _TERM.fullmatch(answer) is not None
        and all(_FUNCTIONS.fullmatch(name) for name in names)
        and not re.search(r"\.\s*[A-Za-z_]", answer)
        and len(powers) == len(re.findall(r"\*\*|\^", answer))
        and sum(not base.isalpha() for base in powers) <= _COMPUTED
    )
