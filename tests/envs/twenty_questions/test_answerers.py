"""Answerers: the knowledge base, an endpoint, a completer, and a sampling client."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from tests.kit.serving import served
from tinker_cookbook.completers import MessageCompleter
from tinker_cookbook.renderers.base import Message

from evert import RemoteModel, ScriptedPolicy
from evert.bridge.errors import InvalidModelError
from evert.envs.twenty_questions.answerers import NOT_UNDERSTOOD, KnowledgeAnswerer, ModelAnswerer
from evert.envs.twenty_questions.errors import AnswererError, FactsError
from evert.envs.twenty_questions.facts import Facts
from evert.envs.twenty_questions.game import Answer
from evert.envs.twenty_questions.nouns import Noun

ZEBRA = Noun("zebra", "animal", "train")


def said(yes_or_no: str, correct: bool = False, reason: str = "because") -> str:
    return json.dumps({"brief_reason": reason, "yes_or_no": yes_or_no, "correct": correct})


async def test_the_knowledge_base_answers_from_facts_or_says_why_it_cannot() -> None:
    answerer = KnowledgeAnswerer()
    for question, expected in (
        ("Does it have four legs?", "yes"),
        ("Does it have wings?", "no"),
        ("Is it not a mammal?", "no"),
        ("Is it wingless?", "yes"),
        ("Is it bigger than a car?", "no"),
        ("Is it a horse?", "no"),
        ("Guess: wombat", "no"),
        ("What is it?", "n/a"),
    ):
        answer = await answerer.answer(ZEBRA, question)
        assert (answer.yes_or_no, answer.correct) == (expected, False), question
    for question in ("Is it a zebra?", "guess: ZEBRA", "Zebras?"):
        assert await answerer.answer(ZEBRA, question) == Answer("yes", True, "guess: zebra")
    for question, reason in (
        ("Is it blorky?", NOT_UNDERSTOOD.brief_reason),
        ("Is it red?", "red: n/a"),
    ):
        answer = await answerer.answer(Noun("butterfly", "animal", "test"), question)
        assert (answer.yes_or_no, answer.brief_reason) == ("n/a", reason)


async def test_nouns_that_are_not_shipped_need_their_own_facts() -> None:
    wombat = Noun("wombat", "animal", "train")
    answerer = KnowledgeAnswerer(Facts({"wombat": {"animal": "yes"}}))

    assert (await answerer.answer(wombat, "Is it an animal?")).yes_or_no == "yes"
    assert (await answerer.answer(wombat, "Is it a wombat?")).correct
    assert (await answerer.answer(wombat, "Is it a plant?")).yes_or_no == "n/a"
    with pytest.raises(FactsError, match="There are no facts about 'wombat'"):
        await KnowledgeAnswerer().answer(wombat, "Is it alive?")


class Endpoint:
    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.replies: list[str] = []
        self.model = RemoteModel("judge", "")

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        message = {"role": "assistant", "content": self.replies.pop(0)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        about = {"id": "1", "object": "chat.completion", "created": 0, "model": "judge"}
        return web.json_response({**about, "choices": [choice]})


@pytest_asyncio.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    server = Endpoint()
    async with served("/v1/chat/completions", server.answer, "POST") as address:
        server.model = RemoteModel("judge", f"{address}/v1")
        yield server


async def test_an_endpoint_answers_in_json(endpoint: Endpoint) -> None:
    endpoint.replies = [said("yes", reason="zebras are mammals")]
    answer = await ModelAnswerer(endpoint.model).answer(ZEBRA, "Is it a mammal?")

    assert answer == Answer("yes", False, "zebras are mammals")
    [request] = endpoint.requests
    assert request["model"] == "judge"
    assert "secret answer is: zebra (category: animal)" in request["messages"][0]["content"]
    assert request["messages"][1]["content"] == "Is it a mammal?"
    schema = request["response_format"]["json_schema"]["schema"]
    assert list(schema["properties"]) == ["brief_reason", "yes_or_no", "correct"]


async def test_an_answer_in_the_wrong_format_is_retried_up_to_the_limit(endpoint: Endpoint) -> None:
    endpoint.replies = ["Yes!", '{"yes_or_no": "maybe"}', f"```json\n{said('no')}\n```"]
    answerer = ModelAnswerer(endpoint.model)

    assert (await answerer.answer(ZEBRA, "Is it a bird?")).yes_or_no == "no"
    assert len(endpoint.requests) == 3
    assert "not JSON" in endpoint.requests[1]["messages"][-1]["content"]
    assert len(endpoint.requests[2]["messages"]) == 4

    endpoint.replies = ["Yes!"] * 3
    with pytest.raises(AnswererError, match="valid reply in 2.*not JSON.*larger model"):
        await ModelAnswerer(endpoint.model, attempts=2).answer(ZEBRA, "Is it a bird?")
    assert len(endpoint.requests) == 3 + 2


class Judge(MessageCompleter):
    """A model with scripted replies that records the requests it receives."""

    def __init__(self, *replies: str) -> None:
        self.replies = list(replies)
        self.asked: list[list[Message]] = []

    async def __call__(self, messages: list[Message]) -> Message:
        self.asked.append(messages)
        return {"role": "assistant", "content": self.replies.pop(0)}


async def test_message_and_token_completers_can_be_answerers() -> None:
    judge, policy = Judge(said("no"), said("n/a")), ScriptedPolicy([said("yes", True)])
    answerer = ModelAnswerer(judge)

    assert (await answerer.answer(ZEBRA, "Is it a bird?")).yes_or_no == "no"
    contents = [str(message["content"]) for message in judge.asked[0]]
    assert "zebra" in contents[0]
    assert contents[1] == "Is it a bird?"
    assert "JSON schema" in contents[2]
    assert (await answerer.answer(ZEBRA, "Hm?")).yes_or_no == "n/a"

    answer = await ModelAnswerer(policy).answer(ZEBRA, "Is it a zebra?")
    assert answer == Answer("yes", True, "because")
    assert "zebra" in policy.prompts[0]
    with pytest.raises(InvalidModelError, match="is 3; expected a MessageCompleter"):
        ModelAnswerer(3)  # type: ignore[arg-type]


async def test_a_models_correct_counts_only_if_the_question_names_the_noun() -> None:
    for question, correct in {
        "Is it a zebra?": True,
        "Could it be zebras?": True,
        "Is it correct that you must say correct?": False,
    }.items():
        answer = await ModelAnswerer(Judge(said("yes", True))).answer(ZEBRA, question)

        assert (answer.yes_or_no, answer.correct) == ("yes", correct), question
