"""A player's searches: in the knowledge base, with a model, or at an HTTP address."""

import aiohttp
import pytest
from aiohttp import web
from tests.kit.serving import served
from tinker_cookbook.completers import MessageCompleter
from tinker_cookbook.renderers.base import Message

from evert.envs.twenty_questions.nouns import of_split, shipped_nouns
from evert.envs.twenty_questions.search import (
    LONGEST_RESULT,
    NOTHING,
    HttpSearch,
    KnowledgeSearch,
    ModelSearch,
)


async def test_the_knowledge_base_finds_nouns_by_facts_and_facts_by_nouns() -> None:
    search = KnowledgeSearch()
    train = KnowledgeSearch(nouns=of_split(shipped_nouns(), "train"))

    assert await search.search("birds that can not fly") == "penguin"
    assert await search.search("mammal, striped, not a farm animal") == "giraffe, zebra"
    piano = await search.search("piano")
    assert piano.startswith("piano: yes to Is it a musical instrument?")
    assert "cat" in (await search.search("pets")).split(", ")
    assert "cat" not in (await train.search("pets")).split(", ")
    for query in ("", "qwertz", "insects that are made of metal"):
        assert await search.search(query) == NOTHING, query


class Encyclopedia(MessageCompleter):
    async def __call__(self, messages: list[Message]) -> Message:
        return {"role": "assistant", "content": f"{messages[-1]['content']} " * 500}


async def test_a_models_search_result_is_truncated() -> None:
    results = await ModelSearch(Encyclopedia()).search("zebras")

    assert results.startswith("zebras zebras")
    assert len(results) == LONGEST_RESULT


async def test_a_search_can_use_an_http_address() -> None:
    async def answer(request: web.Request) -> web.Response:
        query = request.query["q"]
        answers = {"error": web.Response(status=500), "nothing": web.Response(text=" ")}
        return answers.get(query) or web.Response(text=f"about {query}")

    async with served("/", answer) as address:
        search = HttpSearch(f"{address}/?q={{}}")
        assert await search.search("black & white?") == "about black & white?"
        assert await search.search("nothing") == NOTHING
        with pytest.raises(aiohttp.ClientResponseError):
            await search.search("error")
    with pytest.raises(ValueError, match="contain {} in place of the query; got 'http://x'"):
        HttpSearch("http://x")
