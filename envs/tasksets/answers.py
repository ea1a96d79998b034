"""Checks that an answer is safe to pass to reasoning-gym's scorers.

Nine of the scorers evaluate answers as Python: four call ``eval``, and five call
``sympy.parse_expr``, which also uses ``eval`` and exposes all builtins. Those scorers only get
harmless answers. Such an answer calls nothing but mathematical functions, and contains no powers
that could take long to compute. Any other answer scores 0. All other scorers are safe with any
answer, except for the one in ``FRACTIONS``.

This is the second line of defence. The first is that scorers run in isolated processes
(``bridge/isolation.py``), which limit the damage that an answer can do if it gets past these
patterns.
"""

import re

LONGEST = {
    "polynomial_multiplication": 10_000,  # only parsed; correct answers have up to 6,200 characters
    "intermediate_integration": 100,  # sympy simplifies it, which can take 20 s for 300 characters
    "simple_integration": 100,
}
"""Maximum length of an answer in characters. For the other six of the nine scorers, it is 2,000."""

LITERALS = {"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"}
"""Answers are strings and lists, which are safe and fast to evaluate without "(", "*" or "for"."""

SUMS = {"countdown", "puzzle24"}
"""Answers consist of numbers and the four basic operators."""

TERMS = {"intermediate_integration", "polynomial_multiplication", "simple_integration"}
"""Answers can also contain powers and functions of symbols."""

FRACTIONS = {"coin_flip"}
"""Answers are parsed with ``Fraction``, which takes seconds for 1e9999999."""

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
"""Limits for answers with powers or roots of numbers or brackets: the number of powers and roots,
the largest exponent, and the number of digits in the answer. sympy can take minutes for powers or
roots of huge numbers.
"""


def may_be_read(generator: str, answer: str) -> bool:
    """Return whether an answer can safely be passed to the generator's scorer."""
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
