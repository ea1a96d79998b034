"""Search tools for players.

    KnowledgeSearch()              the facts that ship with evert; no model or network required
    ModelSearch(model)             any chat model
    HttpSearch("http://...?q={}")  any endpoint that responds to a GET with text

A ``SearchTool`` takes a query and returns text. It never sees the noun to guess.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from evert.bridge.chat.request import ChatRequest
from evert.envs.twenty_questions.facts import Facts, shipped_facts
from evert.envs.twenty_questions.nouns import Noun, shipped_nouns
from evert.envs.twenty_questions.understanding.lexicon import load_lexicon
from evert.envs.twenty_questions.understanding.parsed import Attribute, Guess
from evert.envs.twenty_questions.understanding.questions import QuestionParser

if TYPE_CHECKING:
    from tinker_cookbook.renderers import Renderer

    from evert.bridge.models.frozen import FrozenModel

LONGEST_RESULT = 1500
"""Maximum length of a result in characters; longer results are cut off."""
NOTHING = "Nothing found."


class SearchTool(Protocol):
    """A tool that looks things up."""

    async def search(self, query: str) -> str:
        """Return the result as text, or ``NOTHING`` if there is no result."""
        ...


class KnowledgeSearch:
    """Searches the facts with queries like "animals that can fly, has four legs" or "zebra".

    A query is split at commas and words like "and" or "that". The result lists all nouns that have
    the attributes we understood. If the query is the name of a noun, the result lists what is true
    of that noun.

    Args:
        facts: The facts (default: the shipped facts).
        nouns: Nouns that can be found (default: all shipped nouns, including held-out nouns).
    """

    def __init__(self, facts: Facts | None = None, nouns: Sequence[Noun] | None = None) -> None:
        self._arguments = (facts, nouns)
        self._facts = facts or shipped_facts()
        self._nouns = [n for n in (nouns or shipped_nouns()) if n.answer in self._facts]
        self._parser = QuestionParser(load_lexicon(), [noun.answer for noun in self._nouns])

    def __reduce__(self) -> tuple[Any, ...]:
        return KnowledgeSearch, self._arguments

    async def search(self, query: str) -> str:
        """Return the nouns that match the query, in list order.

        If the query is the name of a noun, return what is true of that noun.
        """
        parsed = self._parser.parse(query)
        if isinstance(parsed, Guess):
            return self._about(parsed.answer)
        parts = re.split(r",|;|\band\b|\bthat\b|\bwhich\b|\bwith\b", query.lower())
        attributes = [attribute for part in parts for attribute in self._parser.parse_all(part)]
        nouns = self._nouns if attributes else []
        answers = [noun.answer for noun in nouns if self._fits(noun, attributes)]
        return ", ".join(answers)[:LONGEST_RESULT] if answers else NOTHING

    def _fits(self, noun: Noun, attributes: Sequence[Attribute]) -> bool:
        return all(
            self._facts.of(noun.answer, part.attribute) == ("yes" if part.positive else "no")
            for part in attributes
        )

    def _about(self, answer: str) -> str:
        if answer not in self._facts:
            return NOTHING
        questions = load_lexicon().questions
        attributes = [a for a in self._facts.attributes if self._facts.of(answer, a) == "yes"]
        text = " ".join(questions[name] for name in attributes)
        return f"{answer}: yes to {text[:LONGEST_RESULT]}"


class ModelSearch:
    """Answers searches with a chat model."""

    PROMPT = (
        "You are a search engine. Answer the query with the facts that matter most, in at most "
        "five short lines."
    )

    def __init__(self, model: "FrozenModel", *, renderer: "Renderer | None" = None) -> None:
        from evert.bridge.models.frozen import frozen_model
        from evert.bridge.tokens.renderer import prompt_renderer

        self._ask = frozen_model(model, prompt_renderer(renderer))

    async def search(self, query: str) -> str:
        """Return the model's reply."""
        messages: list[Any] = [
            {"role": "system", "content": self.PROMPT},
            {"role": "user", "content": query},
        ]
        reply = await self._ask(ChatRequest("search", messages, max_tokens=400))
        return reply.text.strip()[:LONGEST_RESULT] or NOTHING


class HttpSearch:
    """Searches by fetching a URL.

    Args:
        url: URL with ``{}`` as a placeholder for the query.
        timeout: Timeout for a search in seconds.
    """

    def __init__(self, url: str, *, timeout: float = 30.0) -> None:
        if "{}" not in url:
            raise ValueError(f"The URL must contain {{}} in place of the query; got {url!r}.")
        self._url, self._timeout = url, timeout

    async def search(self, query: str) -> str:
        """Return the start of the response."""
        import aiohttp

        limit = aiohttp.ClientTimeout(total=self._timeout)
        url = self._url.replace("{}", quote(query, safe=""))
        async with (
            aiohttp.ClientSession(timeout=limit, raise_for_status=True) as session,
            session.get(url) as response,
        ):
            text = await response.text()
        return text.strip()[:LONGEST_RESULT] or NOTHING
