"""Which answers a scorer of reasoning-gym's may read: nine of them evaluate an answer as Python.

Four call ``eval``, and five ``sympy.parse_expr``, which calls it, too, with all of Python's own
functions at hand. They get what is made of harmless signs alone: no calls but of functions of
mathematics, no power that could take long. Anything else is scored 0.
"""

import re

LONGEST = {
    "polynomial_multiplication": 10_000,  # a right one may have 6,200, and is only read
    "intermediate_integration": 100,  # they are simplified: 300 signs may take 20 s
    "simple_integration": 100,
}
"""Signs of an answer; 2,000 of any other generator."""

LITERALS = {"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"}
"""Texts and lists: without round brackets, operators and "for" nothing is called or computed."""

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
    r"(\w|\))\s*(?:\*\*|\^)\s*(?:(\d{1,2})(?![\d.])|\(-?(\d{1,2})(?:/2)?\))", re.ASCII
)
_COMPUTED, _TALL, _DIGITS = 2, 9, 40
"""Powers and roots of numbers or brackets, their highest exponent, digits of an answer with one.

sympy takes minutes for a power or a root of a number with thousands of digits.
"""


def may_be_read(generator: str, answer: str) -> bool:
    """Whether the scorer of a generator may read an answer."""
    if len(answer) > LONGEST.get(generator, 2_000):
        return False
    if generator in LITERALS:
        return _LITERAL.fullmatch(answer) is not None and "for" not in answer  # "1for" is one
    if generator in SUMS:
        return _SUM.fullmatch(answer) is not None
    return generator not in TERMS or _is_term(answer)


def _is_term(answer: str) -> bool:
    names = re.findall(r"[A-Za-z_]\w*", answer)
    powers = _POWER.findall(answer)
    computed = [plain or bracketed for base, plain, bracketed in powers if not base.isalpha()]
    computed += ["1"] * names.count("sqrt")
    return (
        _TERM.fullmatch(answer) is not None
        and all(_FUNCTIONS.fullmatch(name) for name in names)
        and not re.search(r"\.\s*[A-Za-z_]|\b[A-Za-z]\s*\(", answer)  # N(pi, 999999)
        and not ("exp" in names and {"log", "ln"} & {*names})  # exp(999999*log(9)) is a power
        and len(powers) == len(re.findall(r"\*\*|\^", answer))
        and len(computed) <= _COMPUTED
        and all(int(exponent) <= _TALL for exponent in computed)
        and (not computed or len(re.findall(r"\d", answer)) <= _DIGITS)
    )
