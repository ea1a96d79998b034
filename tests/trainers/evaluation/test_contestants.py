"""Who plays, found by name.

1. Bases, folders, runs, steps of a run, players and endpoints are told apart by their names.
2. A name that stands for nothing is an error that lists what it may be.
3. An endpoint plays through its own API: text and tool calls come back as the model's tokens.
4. Seeds decide what weights say, whatever else is sampled beside them.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import tinker
from aiohttp import web
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv, RemoteModel
from evert.bridge.base import BASE_MODEL
from evert.trainers.evaluation.contestants import (
    Contestant,
    ContestantError,
    Endpoint,
    Weights,
    find,
)
from evert.trainers.evaluation.policies import EndpointPolicy, SeededPolicy
from evert.trainers.evaluation.settings import EvaluateSettings

SETTINGS = EvaluateSettings(env="twenty_questions", models=("x",))


def weights(found: Contestant) -> Weights:
    assert isinstance(found, Weights)
    return found


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The files of a run of identity that tell where its weights are."""
    settings = {"env": "identity", "agent": "evert.envs.identity:identity_agent", "max_tokens": 9}
    settings["train_tasks"] = "evert.envs.identity:TRAIN_TASKS"
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"settings": settings}))
    records = [
        {"name": "000010", "batch": 10, "sampler_path": "tinker://r/sampler_weights/10"},
        {"name": "000015", "batch": 15, "state_path": "tinker://r/weights/15"},
        {"name": "final", "batch": 20, "sampler_path": "tinker://r/sampler_weights/final"},
    ]
    lines = [json.dumps(record) + "\n" for record in records]
    (folder / "checkpoints.jsonl").write_text("".join(lines))
    return folder


# -- 1. names ------------------------------------------------------------------------------------


def test_a_shipped_base_plays_the_recipes_agent() -> None:
    found = weights(find("evert-tiny-20q", SETTINGS))

    assert found.weights == {"base_model": "evert-tiny-20q"}
    assert found.run.agent.endswith(":short_twenty_questions_agent")


def test_another_model_plays_the_game_at_full_size(tiny_model: str) -> None:
    found = weights(find(tiny_model, SETTINGS))

    assert found.weights == {"base_model": tiny_model}
    assert found.run.agent.endswith(":twenty_questions_agent")
    assert found.run.max_tokens == 256


def test_with_search_it_plays_the_agent_that_searches() -> None:
    searching = EvaluateSettings(env="twenty_questions", models=("x",), search=True)
    found = find("evert-tiny-20q", searching)

    assert searching.agent_of(found.run).endswith(":searching_short_twenty_questions_agent")


def test_a_run_has_its_last_weights_and_the_agent_it_was_trained_with(run: Path) -> None:
    found = weights(find(str(run), SETTINGS))

    assert found.name == str(run)
    assert found.weights == {"model_path": "tinker://r/sampler_weights/final"}
    assert found.checkpoints == run / "checkpoints"
    assert (found.run.env, found.run.max_tokens) == ("identity", 9)


def test_a_step_of_a_run_has_the_weights_after_it(run: Path) -> None:
    found = weights(find(f"{run}@10", SETTINGS))

    assert found.weights == {"model_path": "tinker://r/sampler_weights/10"}


def test_weights_of_a_service_need_their_models_name() -> None:
    named = EvaluateSettings(env="identity", models=("x",), model_name="Qwen/Qwen3-8B")
    found = weights(find("tinker://abc/sampler_weights/final", named))

    assert found.weights == {"model_path": "tinker://abc/sampler_weights/final"}
    assert found.run.model_name == "Qwen/Qwen3-8B"
    with pytest.raises(ContestantError, match="model_name=Qwen/Qwen3-8B"):
        find("tinker://abc/sampler_weights/final", SETTINGS)


def test_players_and_endpoints_have_names_of_their_own() -> None:
    assert find("oracle", SETTINGS).agent.endswith(":oracle_agent")
    assert isinstance(find("openai:gpt-5-mini", SETTINGS), Endpoint)
    assert find("openai:gpt-5-mini", SETTINGS).agent.endswith(":twenty_questions_agent")


# -- 2. mistakes ---------------------------------------------------------------------------------


def test_a_path_that_leads_nowhere_lists_what_may_be_named() -> None:
    with pytest.raises(
        ContestantError, match=r"no run and no model at 'runs/a/b'.*random or oracl"
    ):
        find("runs/a/b", SETTINGS)


def test_a_step_that_was_not_kept_lists_those_that_were(run: Path) -> None:
    with pytest.raises(
        ContestantError, match="no weights after step 12; it has those after 10, 20"
    ):
        find(f"{run}@12", SETTINGS)


def test_a_run_without_weights_says_so(run: Path) -> None:
    (run / "checkpoints.jsonl").unlink()

    with pytest.raises(ContestantError, match="has no weights yet"):
        find(str(run), SETTINGS)


def test_an_agent_without_a_twin_cannot_search(run: Path) -> None:
    searching = EvaluateSettings(env="identity", models=("x",), search=True)

    with pytest.raises(ValueError, match="identity_agent has no twin with a search tool"):
        searching.agent_of(find(str(run), searching).run)


# -- 3. endpoints --------------------------------------------------------------------------------


class Server:
    """An endpoint of chat completions that says what a test tells it to."""

    def __init__(self) -> None:
        self.replies: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        message = {"role": "assistant", "content": None, **self.replies.pop(0)}
        reason = "tool_calls" if "tool_calls" in message else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        reply = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
        return web.json_response({**reply, "choices": [choice]})


@pytest.fixture
async def endpoint() -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield made
    await runner.cleanup()


TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "search", "parameters": {"type": "object", "properties": {}}},
}


async def searching(client: Any) -> float:
    messages: list[Any] = [{"role": "user", "content": "What flies?"}]
    first = await client.chat.completions.create(messages=messages, tools=[TOOL])
    (call,) = first.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"query": "what flies"}
    messages += [
        first.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": "a bird"},
    ]
    second = await client.chat.completions.create(messages=messages, tools=[TOOL])
    return float(second.choices[0].message.content == "Is it a bird?")


async def test_an_endpoint_plays_with_text_and_with_tool_calls(endpoint: Server) -> None:
    function = {"name": "search", "arguments": '{"query": "what flies"}'}
    endpoint.replies = [
        {"tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"content": "Is it a bird?"},
    ]
    env = ChatAgentEnv(searching)
    policy = EndpointPolicy(env, RemoteModel("gpt", endpoint.url))

    trajectory = await do_single_rollout(policy, env)

    assert sum(transition.reward for transition in trajectory.transitions) == 1.0
    assert [body["model"] for body in endpoint.asked] == ["gpt", "gpt"]
    assert endpoint.asked[1]["messages"][-1]["content"] == "a bird"
    assert trajectory.transitions[-1].metrics["tools/calls"] == 1


# -- 4. seeds ------------------------------------------------------------------------------------


async def say(client: Any) -> str:
    messages = [{"role": "user", "content": "Let's play a game. Say you are 7."}]
    completion = await client.chat.completions.create(messages=messages)
    return str(completion.choices[0].message.content)


@pytest.mark.usefixtures("engine")
async def test_a_seed_decides_what_is_said_whatever_is_sampled_beside_it() -> None:
    client = tinker.ServiceClient().create_sampling_client(base_model=BASE_MODEL)

    async def tokens(seed: int) -> list[list[int]]:
        async def agent(handle: Any) -> float:
            for _ in range(3):
                await say(handle)
            return 0.0

        env = ChatAgentEnv(agent)
        trajectory = await do_single_rollout(SeededPolicy(client, 12, 1.0, seed), env)
        return [list(transition.ac.tokens) for transition in trajectory.transitions]

    alone = await tokens(7)
    await tokens(8)

    assert await tokens(7) == alone
    assert await tokens(8) != alone
    assert len({tuple(turn) for turn in alone}) > 1
