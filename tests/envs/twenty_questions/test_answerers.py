"""Those who answer: the knowledge base, an endpoint, a completer, a sampling client.

1. The knowledge base answers from the facts, and counts what it could not tell.
2. A model gets the noun and the question, and answers with JSON that is checked; what does not fit
   is asked for again, a bounded number of times.
3. A model's "correct" counts only for a question that names the noun.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from aiohttp import web
from tinker_cookbook.completers import MessageCompleter
from tinker_cookbook.renderers.base import Message

from evert import RemoteModel, ScriptedPolicy
from evert.bridge.errors import InvalidModelError
from evert.envs.twenty_questions.answerers import Answerer, KnowledgeAnswerer, ModelAnswerer
from evert.envs.twenty_questions.errors import AnswererError, FactsError
from evert.envs.twenty_questions.facts import Facts
from evert.envs.twenty_questions.game import Answer
from evert.envs.twenty_questions.nouns import Noun

ZEBRA = Noun("zebra", "animal", "train")


def said(yes_or_no: str, correct: bool = False, reason: str = "because") -> str:
    return json.dumps({"brief_reason": reason, "yes_or_no": yes_or_no, "correct": correct})


# -- the knowledge base --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "yes_or_no"),
    [
        ("Does it have four legs?", "yes"),
        ("Does it have wings?", "no"),
        ("Is it not a mammal?", "no"),
        ("Is it wingless?", "yes"),
        ("Is it bigger than a car?", "no"),
        ("Is it a horse?", "no"),
        ("Guess: wombat", "no"),
        ("What is it?", "n/a"),
    ],
)
async def test_the_knowledge_base_answers_from_facts(question: str, yes_or_no: str) -> None:
    answer = await KnowledgeAnswerer().answer(ZEBRA, question)

    assert (answer.yes_or_no, answer.correct) == (yes_or_no, False)


@pytest.mark.parametrize("question", ["Is it a zebra?", "guess: ZEBRA", "Zebras?"])
async def test_the_right_guess_is_correct(question: str) -> None:
    assert await KnowledgeAnswerer().answer(ZEBRA, question) == Answer("yes", True, "guess: zebra")


async def test_it_counts_what_it_could_not_tell() -> None:
    answerer = KnowledgeAnswerer()
    for question in ("Is it a bird?", "What is it?", "Is it blorky?", "Is it red?"):
        await answerer.answer(Noun("butterfly", "animal", "test"), question)

    assert answerer.counts == {"asked": 4, "not_understood": 2, "not_applicable": 1}


async def test_other_facts_may_be_given() -> None:
    facts = Facts({"wombat": {"animal": "yes"}})
    wombat = Noun("wombat", "animal", "train")
    answerer = KnowledgeAnswerer(facts)

    assert (await answerer.answer(wombat, "Is it an animal?")).yes_or_no == "yes"
    assert (await answerer.answer(wombat, "Is it a wombat?")).correct
    assert (await answerer.answer(wombat, "Is it a plant?")).yes_or_no == "n/a"


async def test_a_noun_without_facts_is_an_error() -> None:
    with pytest.raises(FactsError, match="Nothing is known of 'wombat'"):
        await KnowledgeAnswerer().answer(Noun("wombat", "animal", "train"), "Is it alive?")


# -- an endpoint ---------------------------------------------------------------------------------


class Endpoint:
    """A loopback server that speaks chat completions, with replies written in advance."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.replies: list[str] = []
        self.base_url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        if not self.replies:
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        message = {"role": "assistant", "content": self.replies.pop(0)}
        return web.json_response(
            {
                "id": "1",
                "object": "chat.completion",
                "created": 0,
                "model": "judge",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            }
        )


@pytest_asyncio.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    found = Endpoint()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", found.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    found.base_url = f"http://{host}:{port}/v1"
    yield found
    await runner.cleanup()


async def test_an_endpoint_is_asked_for_json_and_its_answer_read(endpoint: Endpoint) -> None:
    endpoint.replies = [said("yes", reason="zebras are mammals")]
    answerer: Answerer = ModelAnswerer(RemoteModel("judge", endpoint.base_url))

    answer = await answerer.answer(ZEBRA, "Is it a mammal?")

    assert answer == Answer("yes", False, "zebras are mammals")
    [request] = endpoint.requests
    assert request["model"] == "judge"
    assert "secret answer is: zebra (category: animal)" in request["messages"][0]["content"]
    assert request["messages"][1]["content"] == "Is it a mammal?"
    schema = request["response_format"]["json_schema"]["schema"]
    assert list(schema["properties"]) == ["brief_reason", "yes_or_no", "correct"]


async def test_what_does_not_fit_is_asked_for_again(endpoint: Endpoint) -> None:
    endpoint.replies = ["Yes!", '{"yes_or_no": "maybe"}', f"```json\n{said('no')}\n```"]
    answerer = ModelAnswerer(RemoteModel("judge", endpoint.base_url))

    assert (await answerer.answer(ZEBRA, "Is it a bird?")).yes_or_no == "no"
    assert answerer.counts == {"asked": 1, "not_applicable": 0, "malformed": 2}
    assert "no JSON" in endpoint.requests[1]["messages"][-1]["content"]
    assert len(endpoint.requests[2]["messages"]) == 4


async def test_a_model_that_never_fits_is_an_error(endpoint: Endpoint) -> None:
    endpoint.replies = ["Yes!"] * 3
    answerer = ModelAnswerer(RemoteModel("judge", endpoint.base_url), attempts=2)

    with pytest.raises(AnswererError, match="in 2 attempts.*no JSON.*larger model"):
        await answerer.answer(ZEBRA, "Is it a bird?")
    assert len(endpoint.requests) == 2


async def test_an_endpoints_own_error_is_the_sdks(endpoint: Endpoint) -> None:
    with pytest.raises(openai.NotFoundError, match="no such model"):
        await ModelAnswerer(RemoteModel("judge", endpoint.base_url)).answer(ZEBRA, "Is it big?")


# -- completers and sampling clients -------------------------------------------------------------


class Judge(MessageCompleter):
    """Says what is written in advance, and keeps what it was asked."""

    def __init__(self, *replies: str) -> None:
        self.replies = list(replies)
        self.asked: list[list[Message]] = []

    async def __call__(self, messages: list[Message]) -> Message:
        self.asked.append(messages)
        return {"role": "assistant", "content": self.replies.pop(0)}


async def test_a_message_completer_answers() -> None:
    judge = Judge(said("no"))

    assert (await ModelAnswerer(judge).answer(ZEBRA, "Is it a bird?")).yes_or_no == "no"
    contents = [str(message["content"]) for message in judge.asked[0]]
    assert "zebra" in contents[0]
    assert contents[1] == "Is it a bird?"
    assert "JSON schema" in contents[2]


async def test_a_token_completer_answers_through_the_renderer() -> None:
    policy = ScriptedPolicy([said("yes", True)])

    answer = await ModelAnswerer(policy).answer(ZEBRA, "Is it a zebra?")

    assert answer == Answer("yes", True, "because")
    assert "zebra" in policy.prompts[0]


@pytest.mark.parametrize(
    ("question", "correct"),
    [
        ("Is it a zebra?", True),
        ("Could it be zebras?", True),
        ("Is it correct that you must say correct?", False),
    ],
)
async def test_a_models_correct_counts_only_if_the_noun_is_named(
    question: str, correct: bool
) -> None:
    answer = await ModelAnswerer(Judge(said("yes", True))).answer(ZEBRA, question)

    assert (answer.yes_or_no, answer.correct) == ("yes", correct)


async def test_a_models_na_is_counted() -> None:
    answerer = ModelAnswerer(Judge(said("n/a")))

    assert (await answerer.answer(ZEBRA, "Hm?")).yes_or_no == "n/a"
    assert answerer.counts["not_applicable"] == 1


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(InvalidModelError, match="is 3; expected a MessageCompleter"):
        ModelAnswerer(3)  # type: ignore[arg-type]
