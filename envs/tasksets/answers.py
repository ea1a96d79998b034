"""Which answers are safe for reasoning-gym's scorers: nine of them evaluate answers as Python.

Four call ``eval``. Five call ``sympy.parse_expr``, which also calls ``eval``, with all of Python's
built-in functions. These scorers get only harmless answers: no calls except to mathematical
functions, no powers that could take long. All others score 0. The remaining scorers get any answer,
except for the one in ``FRACTIONS``.

This is the second line of defence. The first is that scorers run in isolates
(``bridge/isolation.py``), which stop what these patterns miss.
"""

import re

LONGEST = {
    "polynomial_multiplication": 10_000,  # only parsed; a right answer may have 6,200
    "intermediate_integration": 100,  # simplified, which may take 20 s for 300 characters
    "simple_integration": 100,
}
"""Maximum length of an answer, in characters; 2,000 for the others of the nine."""

LITERALS = {"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"}
"""Their answers are strings and lists, safe and fast to evaluate without "(", "*" and "for"."""

SUMS = {"countdown", "puzzle24"}
"""Their answers have numbers and the four operators."""

TERMS = {"intermediate_integration", "polynomial_multiplication", "simple_integration"}
"""Their answers also have powers and functions of symbols."""

FRACTIONS = {"coin_flip"}
"""Its answers are parsed by ``Fraction``, for which 1e9999999 takes seconds."""

_LONG_EXPONENT = re.compile(r"[\d.]e[+-]?[\d_]{3}", re.IGNORECASE)
_LITERAL = re.compile(r"[\w\s\[\],'\".+-]*", re.ASCII)
_SUM = re.compile(r"(?:[\d\s+\-/().]|\*(?!\*))*", re.ASCII)
_TERM = re.compile(r"[\w\s+\-*/(),.^=]*", re.ASCII)
_FUNCTIONS = re.compile(
    r"[A-Za-z]|a?(?:sin|cos|tan)h?|sec|csc|cot|exp|log|ln|sqrt|pi|Abs|erf|Si|Ci|Integral"
)
_POWER = re.compile(
    r"(\w|\))\s*(?:\*\*|\^)\s*(?:(\d{1,2})(?![\d.])|\(-?(\d{1,2})(?:/2)?\))", re.ASCII
)
_COMPUTED, _TALL, _DIGITS = 2, 9, 40
"""Limits for powers and roots of numbers or brackets: how many, exponent, digits of the answer.

sympy takes minutes for a power or a root of a number with thousands of digits.
"""


def may_be_read(generator: str, answer: str) -> bool:
    """Return whether an answer is safe for a generator's scorer."""
    if generator in FRACTIONS:
        return _LONG_EXPONENT.search(answer) is None
    if generator not in LITERALS | SUMS | TERMS:
        return True
    if len(answer) > LONGEST.get(generator, 2_000):
        return False
    if generator in LITERALS:
        return _LITERAL.fullmatch(answer) is not None and "for" not in answer  # also in "1for"
    if generator in SUMS:
        return _SUM.fullmatch(answer) is not None
    return _is_term(answer)


def _is_term(answer: str) -> bool:
    names = re.findall(r"[A-Za-z_]\w*", answer)
    powers = _POWER.findall(answer)
    computed = [plain or bracketed for base, plain, bracketed in powers if not base.isalpha()]
    computed += ["1"] * names.count("sqrt")
    return (
        _TERM.fullmatch(answer) is not None
        and _LONG_EXPONENT.search(answer) is None
        and all(_FUNCTIONS.fullmatch(name) for name in names)
        and not re.search(r"\.\s*[A-Za-z_]|\b[A-Za-z]\s*\(", answer)  # like N(pi, 999999)
        and not ("exp" in names and {"log", "ln"} & {*names})  # exp(999999*log(9)) is a power
        and len(powers) == len(re.findall(r"\*\*|\^", answer))
        and len(computed) <= _COMPUTED
        and all(int(exponent) <= _TALL for exponent in computed)
        and (not computed or len(re.findall(r"\d", answer)) <= _DIGITS)
    )
