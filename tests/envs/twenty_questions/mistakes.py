"""List the blindly written questions that the answerer gets wrong, by type of mistake.

    python -m tests.envs.twenty_questions.mistakes

We may look at the odd-numbered lines of ``blind_questions.csv``; the other lines are only scored.
``strangers_questions.csv`` has 960 questions written for evert by three people who had seen only
the nouns: sets a and c contain single questions, and set b contains whole games. On the first try,
90.3% of set a and 80.6% of set b were answered correctly; we have since looked at the mistakes. Set
c was written after that and answered once: 96.3% correctly. Nobody has looked at the mistakes in
set c. In these three sets, the label of a right guess is "yes", as for other questions.
"""

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from evert.envs.twenty_questions.answerers import KnowledgeAnswerer
from evert.envs.twenty_questions.nouns import shipped_nouns
from evert.envs.twenty_questions.understanding.parsed import Guess, Parsed


def _rows(name: str) -> list[dict[str, str]]:
    with open(Path(__file__).parent / name, newline="") as file:
        return [*csv.DictReader(file)]


ROWS, STRANGERS = _rows("blind_questions.csv"), _rows("strangers_questions.csv")
SETS = {
    "development": ROWS[::2],
    "held-out": ROWS[1::2],
    **{f"strangers' {name}": [row for row in STRANGERS if row["set"] == name] for name in "abc"},
}
KINDS = ("not understood", "guess not seen", "taken as a guess", "makes no sense", "wrong answer")


def mistakes(name: str) -> Iterator[tuple[str, str, str, Parsed]]:
    """For each wrong answer, yield the type of mistake, the noun, the question and its parse."""
    answerer = KnowledgeAnswerer()
    nouns = {noun.answer: noun for noun in shipped_nouns()}
    for row in SETS[name]:
        noun, question, expected = row["noun"], row["question"], row["answer"]
        answer = answerer.answer_now(nouns[noun], question)
        parsed = answerer.parser.parse(question)
        guess = expected in ("right", "wrong")
        yes_or_no = {"right": "yes", "wrong": "no"}.get(expected, expected)
        is_right = "set" in row or answer.correct == (expected == "right")
        if answer.yes_or_no == yes_or_no and is_right:
            continue
        if guess and not isinstance(parsed, Guess):
            kind = "guess not seen"
        elif isinstance(parsed, Guess):
            kind = "wrong answer" if guess else "taken as a guess"
        elif parsed is None:
            kind = "not understood"
        else:
            kind = "makes no sense" if answer.yes_or_no == "n/a" else "wrong answer"
        yield kind, noun, question, parsed


if __name__ == "__main__":
    print("| questions | right |", " | ".join(KINDS), "|")
    print("|" + "---|" * (2 + len(KINDS)))
    for name, rows in SETS.items():
        kinds = Counter(kind for kind, *_ in mistakes(name))
        right = 1 - kinds.total() / len(rows)
        counts = " | ".join(str(kinds[kind]) for kind in KINDS)
        print(f"| {name}, {len(rows)} | {right:.3f} | {counts} |")
