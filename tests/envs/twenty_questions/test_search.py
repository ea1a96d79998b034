"""What a player may look things up in.

1. The knowledge base finds nouns by what holds for them, and what holds for a noun.
2. A model, or an address, finds whatever it says.
3. Finding nothing is said, and results are cut.
"""

import aiohttp
import pytest
from aiohttp import web
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


async def test_nouns_are_found_by_what_holds_for_them() -> None:
    search = KnowledgeSearch()

    assert await search.search("birds that can not fly") == "penguin"
    assert await search.search("mammal, striped, not a farm animal") == "giraffe, zebra"


async def test_a_nouns_facts_are_found() -> None:
    found = await KnowledgeSearch().search("piano")

    assert found.startswith("piano: yes to Is it a musical instrument?")


async def test_nouns_may_be_kept_out_of_the_search() -> None:
    search = KnowledgeSearch(nouns=of_split(shipped_nouns(), "train"))

    assert "cat" not in (await search.search("pets")).split(", ")
    assert "cat" in (await KnowledgeSearch().search("pets")).split(", ")


@pytest.mark.parametrize("query", ["", "qwertz", "insects that are made of metal"])
async def test_finding_nothing_is_said(query: str) -> None:
    assert await KnowledgeSearch().search(query) == NOTHING


class Encyclopedia(MessageCompleter):
    """Says the query, many times."""

    async def __call__(self, messages: list[Message]) -> Message:
        return {"role": "assistant", "content": f"{messages[-1]['content']} " * 500}


async def test_a_model_is_asked_and_its_answer_cut() -> None:
    found = await ModelSearch(Encyclopedia()).search("zebras")

    assert found.startswith("zebras zebras")
    assert len(found) == LONGEST_RESULT


async def test_an_address_is_asked() -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.query["q"] == "nothing":
            return web.Response(text=" ")
        if request.query["q"] == "error":
            return web.Response(status=500)
        return web.Response(text=f"about {request.query['q']}")

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    search = HttpSearch(f"http://{host}:{port}/?q={{}}")

    assert await search.search("black & white?") == "about black & white?"
    assert await search.search("nothing") == NOTHING
    with pytest.raises(aiohttp.ClientResponseError):
        await search.search("error")
    await runner.cleanup()


def test_an_address_without_a_place_for_the_query_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs {} where the query goes, got 'http://x'"):
        HttpSearch("http://x")
