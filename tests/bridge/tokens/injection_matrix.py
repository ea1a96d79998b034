"""Checks that a prompt has the same control tokens as one whose texts are harmless letters.

A *finding* is a combination of renderer, dialect, shape, field and literal whose prompt differs
from the prompt with harmless letters, either in the count of a control token or in the text.
"""

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.bridge.tokens.flagged_tokenizers import literals, make_renderer
from tests.bridge.tokens.request_shapes import SHAPES, filled, prompt_of, slots

_ESCAPE = re.compile(r"\\+u([0-9a-f]{4})")
_LAYOUT = re.compile(r"\s|/|\\+[nt]?")

PromptOf = Callable[[str, str, Any], list[int] | None]


def innocent(text: str) -> str:
    """Replace all characters except whitespace with a harmless letter."""
    return "".join(c if c.isspace() else "a" for c in text)


@dataclass
class Matrix:
    """The findings for one renderer.

    Attributes:
        name: Name of the renderer.
        prompt_of: Takes a renderer name, a dialect and a body, and returns the prompt.
        checked: Number of (dialect, field, literal) combinations checked so far.
        refused: Combinations that got a 400, although the request with harmless letters did not.
        findings: One line per finding.
    """

    name: str
    prompt_of: PromptOf = prompt_of
    checked: int = 0
    refused: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.literals = literals(self.name)
        self._known = frozenset(self.literals.values())
        self._expected: dict[tuple[str, str, str], tuple[list[int], Counter[int]] | None] = {}

    def try_each(self, dialect: str, shape: str, text: str, count: int) -> None:
        """Check each slot of a shape separately with a text that contains ``count`` literals."""
        for slot in slots(SHAPES[dialect][shape]):
            self._check(dialect, shape, [slot], text, count)

    def try_all(
        self, dialect: str, shape: str, text: str, count: int = 1, *, is_read: bool = False
    ) -> None:
        """Fill all slots of a shape with a text. If there is a finding, locate the slot.

        With ``is_read``, also compare the text of the prompt.
        """
        every = slots(SHAPES[dialect][shape])
        before, refused = len(self.findings), len(self.refused)
        self._check(dialect, shape, every, text, count, is_read=is_read)
        if len(self.refused) > refused:
            del self.refused[refused:]
            self.try_each(dialect, shape, text, 0)
        elif len(self.findings) > before:
            combined = self.findings[before:]
            del self.findings[before:]
            self._find(dialect, shape, every, text)
            self.findings += [] if len(self.findings) > before else combined

    def _find(self, dialect: str, shape: str, every: list[str], text: str) -> None:
        """Locate a finding in a single slot or in two adjacent ones."""
        before = len(self.findings)
        self.try_each(dialect, shape, text, 0)
        if len(self.findings) == before:
            for pair in itertools.pairwise(every):
                self._check(dialect, shape, pair, text, 0)

    def _check(
        self,
        dialect: str,
        shape: str,
        where: Collection[str],
        text: str,
        count: int,
        *,
        is_read: bool = False,
    ) -> None:
        body = SHAPES[dialect][shape]
        expected = self._with_letters(dialect, shape, innocent(text) if is_read else "a")
        if expected is None:
            return  # this renderer does not support the request
        self.checked += count * len(where)
        at = "all" if len(where) > 2 else " and ".join(where)
        place = f"{self.name} | {dialect} | {shape} | {at}"
        prompt = self.prompt_of(self.name, dialect, filled(body, dict.fromkeys(where, text)))
        if prompt is None:
            self.refused.append(f"{place} | {text!r:.60}")
            return
        self.compare(f"{place} | {text!r:.60}", prompt, expected[1])
        if is_read and self._reading(prompt, text) != self._reading(expected[0], text):
            self.findings.append(f"{place} | {text!r:.60} | the text differs")

    def _with_letters(
        self, dialect: str, shape: str, letters: str
    ) -> tuple[list[int], Counter[int]] | None:
        """Return the prompt with letters in all slots, and the counts of its control tokens."""
        key = (dialect, shape, letters)
        if key not in self._expected:
            body = SHAPES[dialect][shape]
            texts = dict.fromkeys(slots(body), letters)
            prompt = self.prompt_of(self.name, dialect, filled(body, texts))
            self._expected[key] = None if prompt is None else (prompt, self.control(prompt))
        return self._expected[key]

    def compare(self, place: str, found: Iterable[int], expected: Counter[int]) -> None:
        """Add a finding for each control token whose count differs from the expected count."""
        has = self.control(found)
        if has == expected:
            return
        for literal, number in self.literals.items():
            if has[number] != expected[number]:
                wrong = f"{literal} | {has[number]}, expected {expected[number]}"
                self.findings.append(f"{place} | {wrong}")

    def control(self, prompt: Iterable[int]) -> Counter[int]:
        """Count the control tokens in a prompt."""
        return Counter(filter(self._known.__contains__, prompt))

    def _reading(self, prompt: list[int], text: str) -> Counter[str]:
        """Count the characters in a prompt after replacing the text and all literals with letters.

        Counting makes the comparison independent of how templates sort, escape and strip texts.
        """
        tokenizer: Any = make_renderer(self.name).tokenizer
        text_shown = str(tokenizer.decode(prompt))
        while _ESCAPE.search(text_shown):
            text_shown = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text_shown)
        text_shown = unicodedata.normalize("NFKC", text_shown)
        pieces = {unicodedata.normalize("NFKC", one) for one in (*self.literals, *text.split())}
        for piece in sorted(pieces, key=len, reverse=True):
            text_shown = text_shown.replace(piece, innocent(piece))
        return Counter(_LAYOUT.sub("", text_shown))

    def report(self) -> None:
        """Fail if there are findings or requests that were rejected but should not have been."""
        refused = [place for place in self.refused if "| @pattern |" not in place]
        if findings := [*self.findings, *(f"{place} | refused" for place in refused)]:
            lines = "\n".join(findings)
            pytest.fail(f"{len(findings)} findings\n{lines}", pytrace=False)
