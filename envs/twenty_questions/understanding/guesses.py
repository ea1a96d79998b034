"""Recognises guesses, which are questions that only name a noun."""

import re
from collections.abc import Iterable, Mapping, Sequence

from evert.envs.twenty_questions.understanding import wording
from evert.envs.twenty_questions.understanding.wording import FILLER, stem, stems_of

EXPLICIT = re.compile(r"^\W*(?:my |final )*(?:guess|answer)\s*(?:is|:)\s*", re.IGNORECASE)
RELATIONS = stems_of(
    """
    ability about allow around associate associated at by capable component describe design
    encounter equip for form from function had has have in include instead intend into involve
    off on out over own part possess refer relate related require tend than to together under up
    with
    """
)
"""Filler words that relate the answer to a different noun: "is it on a table" is not a guess."""
GUESS_FILLER = (FILLER - RELATIONS) | stems_of(
    """
    guess final believe suppose right correct pair name piece certainly definitely finally hm hmm ah
    oh sure bet say call character animal instrument food vehicle flower landmark person tool toy
    device let chance
    """
)
IDIOM = re.compile(
    r"\b(?:(?:going|want|like|have) to|to be|for sure|by (?:any )?chance|think(?:ing)? about)\b"
)
"""Phrases that don't affect what is guessed."""
PROPER = re.compile(
    r"\b(?:[Ii]s|[Ww]as|be) (?:(?:it|he|she|this|that) )?(?:the )?"
    r"([A-Z][\w.'-]+(?: [A-Z][\w.'-]+)*)\W*$"
)
"""Matches a proper name at the end of a question."""
PORTIONS = stems_of("bar bit bowl bottle box bunch cup glass jar loaf pair piece pot set slice")
"""A portion of a noun, as in "a loaf of bread", counts as the noun."""


class Names:
    """Finds nouns by name, ignoring case, articles and plurals and resolving aliases."""

    def __init__(
        self,
        answers: Iterable[str],
        aliases: dict[str, tuple[str, ...]],
        foreign: Iterable[str] = (),
    ) -> None:
        self._names: dict[tuple[str, ...], str] = {}
        self._foreign_names = {key(name): name for name in foreign}
        answers = list(answers)
        for answer in answers:
            for alias in aliases.get(answer, ()):
                self._add(alias, answer)
        for answer in answers:
            self._add(answer, answer)

    def _add(self, name: str, answer: str) -> None:
        parts = key(name)
        self._names[parts] = self._names[("".join(parts),)] = answer  # "tea pot" = "teapot"

    @property
    def keys(self) -> Iterable[tuple[str, ...]]:
        """The stems of all names."""
        return self._names.keys()

    def find(self, words: Sequence[str]) -> str | None:
        """Return the noun that the words name, or None if they contain anything else."""
        return _find_name(words, self._names)

    def find_foreign(self, words: Sequence[str]) -> str | None:
        """Return the thing in ``foreign_nouns`` that the words name, or None."""
        return _find_name(words, self._foreign_names)


def proper_name(question: str) -> str | None:
    """Return the proper name at the end of a question like "is it the Brooklyn Bridge?"."""
    match = None if question.isupper() else PROPER.search(question)
    return match and match[1]


def _find_name(words: Sequence[str], names: Mapping[tuple[str, ...], str]) -> str | None:
    words = IDIOM.sub("", " ".join(words)).split()
    for start in range(len(words)):
        parts = tuple(map(stem, words[start:]))
        answer = names.get(parts) or names.get(("".join(parts),))
        if answer is not None:
            return answer
        portion = stem(words[start]) in PORTIONS and words[start + 1 : start + 2] == ["of"]
        if not portion and stem(words[start]) not in GUESS_FILLER:
            break
    return names.get(key(" ".join(words)))


def key(text: str) -> tuple[str, ...]:
    """Return a name's stems, without articles."""
    parts = wording.stems(text)
    return tuple(part for part in parts if part not in ("a", "an", "the")) or tuple(parts)
