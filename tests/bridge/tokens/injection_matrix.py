"""Checks that a prompt has no more control tokens than with harmless letters as its texts.

A *finding* is a combination of renderer, dialect, shape, field and literal for which the number of
a control token differs, or the prompt's text does.
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
    """Return as many harmless letters as the text has characters."""
    return "".join(c if c.isspace() else "a" for c in text)


@dataclass
class Matrix:
    """The findings about one renderer.

    Attributes:
        name: The renderer.
        prompt_of: Makes a prompt from a renderer's name, a dialect and a body.
        checked: Combinations of a dialect, a field and a literal that were checked.
        refused: Combinations that were a 400 although letters were not.
        findings: One line each.
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
        """Put a text, which holds ``count`` literals, into each slot of a shape in turn."""
        for slot in slots(SHAPES[dialect][shape]):
            self._check(dialect, shape, [slot], text, count)

    def try_all(
        self, dialect: str, shape: str, text: str, count: int = 1, *, is_read: bool = False
    ) -> None:
        """Put a text into all slots of a shape at once; on a finding, locate the slot.

        With ``is_read``, the text of the prompt is compared, too.
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
        """Locate a finding: in one slot, or in two adjacent ones."""
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
            return  # this renderer takes no such request at all
        self.checked += count * len(where)
        at = "all" if len(where) > 2 else " and ".join(where)
        place = f"{self.name} | {dialect} | {shape} | {at}"
        prompt = self.prompt_of(self.name, dialect, filled(body, dict.fromkeys(where, text)))
        if prompt is None:
            self.refused.append(f"{place} | {text!r:.60}")
            return
        self.compare(f"{place} | {text!r:.60}", prompt, expected[1])
        if is_read and self._reading(prompt, text) != self._reading(expected[0], text):
            self.findings.append(f"{place} | {text!r:.60} | reads otherwise")

    def _with_letters(
        self, dialect: str, shape: str, letters: str
    ) -> tuple[list[int], Counter[int]] | None:
        """Return the prompt of a shape with letters in all slots, and its control tokens."""
        key = (dialect, shape, letters)
        if key not in self._expected:
            body = SHAPES[dialect][shape]
            texts = dict.fromkeys(slots(body), letters)
            prompt = self.prompt_of(self.name, dialect, filled(body, texts))
            self._expected[key] = None if prompt is None else (prompt, self.control(prompt))
        return self._expected[key]

    def compare(self, place: str, found: Iterable[int], expected: Counter[int]) -> None:
        """Add a finding if a prompt's number of a control token is not as expected."""
        has = self.control(found)
        if has == expected:
            return
        for literal, number in self.literals.items():
            if has[number] != expected[number]:
                wrong = f"{literal} | {has[number]}, expected {expected[number]}"
                self.findings.append(f"{place} | {wrong}")

    def control(self, prompt: Iterable[int]) -> Counter[int]:
        """Count each control token of a prompt."""
        return Counter(filter(self._known.__contains__, prompt))

    def _reading(self, prompt: list[int], text: str) -> Counter[str]:
        """Count the characters of a prompt, with the text and the literals replaced by letters.

        Counting ignores that templates sort, escape and strip texts.
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
        """Fail with every finding, and if a text was refused that should not be."""
        refused = [place for place in self.refused if "| @pattern |" not in place]
        if findings := [*self.findings, *(f"{place} | refused" for place in refused)]:
            lines = "\n".join(findings)
            pytest.fail(f"{len(findings)} findings\n{lines}", pytrace=False)
