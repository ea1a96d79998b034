"""``ServedPolicy`` plays by sampling from a server, which it checks first."""

import asyncio
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import tinker
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.trainers.serving.conftest import prompt
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv
from evert.bridge.tokens.bases import base_tokenizer
from evert.envs.identity import identity_agent
from evert.trainers.serving.errors import NotServedError, ServerGoneError, UnfitServerError
from evert.trainers.serving.policy import ServedPolicy
from evert.trainers.serving.service import PolicyService


@pytest.fixture
def policy(client: Any, service: PolicyService) -> ServedPolicy:
    named = service.url, service.offer(client).model
    tokenizer, key = base_tokenizer(), service.key
    return ServedPolicy(*named, api_key=key, max_tokens=12, seed=5, tokenizer=tokenizer)


async def test_a_served_policy_plays_an_agent_with_the_sampled_tokens(policy: ServedPolicy) -> None:
    trajectory = await do_single_rollout(policy, ChatAgentEnv(identity_agent, 7))
    [turn] = trajectory.transitions
    assert len(turn.ac.tokens) == len(turn.ac.logprobs)
    assert all(logprob <= 0 for logprob in turn.ac.logprobs)


async def test_a_served_policy_checks_its_server_once(policy: Any, service: PolicyService) -> None:
    copy = pickle.loads(pickle.dumps(policy))
    await asyncio.gather(*[copy(prompt(f"{i}"), []) for i in range(8)])
    first = service.requests
    await copy(prompt(), [])
    assert first == 8 + 2  # the check samples once and scores once
    assert service.requests == first + 1


async def test_each_reply_has_the_next_seed(policy: ServedPolicy, client: Any) -> None:
    replies = [await policy(prompt(), []) for _ in range(3)]
    ways = [tinker.SamplingParams(max_tokens=12, seed=seed, stop=[]) for seed in (5, 6, 7)]
    responses = [await client.sample_async(prompt(), 1, way) for way in ways]
    expected = [response.sequences[0].tokens for response in responses]
    assert [reply.tokens for reply in replies] == expected


Change = Callable[[dict[str, Any]], None]


def without(field: str) -> Change:
    def change(body: dict[str, Any]) -> None:
        for choice in body.get("choices", []):
            choice.pop(field, None)

    return change


def tempered(body: dict[str, Any]) -> None:
    """Rescale log-probabilities to the sampling temperature, as vLLM can be configured to do."""
    for choice in body.get("choices", []):
        logprobs = choice.get("logprobs", {}).get("token_logprobs")
        if logprobs:
            choice["logprobs"]["token_logprobs"] = [logprob / 2 for logprob in logprobs]


UNFIT: list[tuple[Change, str]] = [
    (without("prompt_token_ids"), "did not return the prompt's token ids"),
    (without("prompt_logprobs"), "did not return the prompt's log-probabilities"),
    (tempered, "Start vLLM without --logprobs-mode"),
]


@pytest.mark.parametrize(("change", "text"), UNFIT, ids=["no ids", "no scores", "tempered"])
async def test_an_unsuitable_server_is_refused_at_the_first_call(
    policy: ServedPolicy, service: PolicyService, change: Change, text: str
) -> None:
    answer = service._answer

    async def changed(request: Any) -> Any:
        answered = await answer(request)
        body = json.loads(answered.content)
        change(body)
        return replace(answered, content=json.dumps(body).encode())

    with patch.object(service, "_answer", changed), pytest.raises(UnfitServerError, match=text):
        await policy(prompt(), [])


async def test_a_server_with_another_tokenizer_is_refused(policy: ServedPolicy) -> None:
    policy._tokenizer = base_tokenizer("evert-tiny-20q")
    with pytest.raises(UnfitServerError, match=r"our tokenizer \(evert-tiny-20q\)"):
        await policy(prompt(), [])


@pytest.mark.parametrize("tokenized", ["{}", "[1, 2]", "<html>"])
async def test_llama_cpp_is_refused_if_its_tokenize_route_returns_no_ids(tokenized: str) -> None:
    content = [{"id": 3, "logprob": -0.5}]
    choice = {"index": 0, "finish_reason": "stop", "logprobs": {"content": content}}
    answers = {
        "/v1/models": json.dumps({"data": [{"id": "m", "owned_by": "llamacpp"}]}),
        "/v1/completions": json.dumps({"choices": [choice]}),
        "/tokenize": tokenized,
    }

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=answers[request.path])

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        with pytest.raises(UnfitServerError, match=r"/v1 did not return the prompt's token ids"):
            await ServedPolicy(str(server.make_url("/v1")), "m")(prompt(), [])


async def test_an_error_names_a_missing_model_or_server(
    client: Any, service: PolicyService
) -> None:
    service.offer(client, "mine")
    with pytest.raises(
        NotServedError, match="not serve the model 'yours'. Available models: 'mine'"
    ):
        await ServedPolicy(service.url, "yours", api_key=service.key)(prompt(), [])
    with pytest.raises(ServerGoneError, match=r"http://127.0.0.1:9/v1/models could not be reached"):
        await ServedPolicy("http://127.0.0.1:9/v1", "m")(prompt(), [])
