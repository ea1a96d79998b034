"""Who plays, found by name.

1. Bases, folders, runs, steps of a run, players and endpoints are told apart by their names.
2. All play the agent that the evaluation names, on the device and by the renderer that it names.
3. Digests are of weights and of what else decides what is said, not of names.
4. A name that stands for nothing is an error that lists what it may be.
5. An endpoint plays through its own API: text and tool calls come back as the model's tokens; the
   evaluation's temperature and cap are kept.
6. Seeds decide what weights say, whatever else is sampled beside them.
"""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import tinker
from aiohttp import web
from tinker.types import ImageChunk
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv, RemoteModel
from evert.bridge.tokens.bases import BASE_MODEL
from evert.trainers.config.evaluate import EvaluateSettings
from evert.trainers.config.model_names import ModelNameError, NamedEndpoint, NamedWeights
from evert.trainers.episodes.players import Contestant, find
from evert.trainers.episodes.policies import EndpointPolicy, PolicyError, SeededPolicy

SETTINGS = EvaluateSettings(env="twenty_questions", models=("x",))


def weights(found: Contestant) -> Contestant:
    assert isinstance(found.named, NamedWeights)
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

    assert found.agent.endswith(":searching_short_twenty_questions_agent")


def test_a_run_has_its_last_weights_and_is_asked_for_replies_as_it_was_trained(run: Path) -> None:
    found = weights(find(str(run), SETTINGS))

    assert found.name == str(run)
    assert found.weights == {"model_path": "tinker://r/sampler_weights/final"}
    assert isinstance(found.named, NamedWeights)
    assert found.named.checkpoints == run / "checkpoints"
    assert found.max_tokens == 9


def test_a_step_of_a_run_has_the_weights_after_it(run: Path) -> None:
    found = weights(find(f"{run}@10", SETTINGS))

    assert found.weights == {"model_path": "tinker://r/sampler_weights/10"}


def test_weights_of_a_service_need_their_models_name() -> None:
    named = EvaluateSettings(env="identity", models=("x",), model_name="Qwen/Qwen3-8B")
    found = weights(find("tinker://abc/sampler_weights/final", named))

    assert found.weights == {"model_path": "tinker://abc/sampler_weights/final"}
    assert found.run.model_name == "Qwen/Qwen3-8B"
    with pytest.raises(ModelNameError, match="model_name=Qwen/Qwen3-8B"):
        find("tinker://abc/sampler_weights/final", SETTINGS)


def test_players_and_endpoints_have_names_of_their_own() -> None:
    assert find("oracle", SETTINGS).agent.endswith(":oracle_agent")
    assert isinstance(find("openai:gpt-5-mini", SETTINGS).named, NamedEndpoint)
    assert find("openai:gpt-5-mini", SETTINGS).agent.endswith(":twenty_questions_agent")


# -- 2. what is played, and on what --------------------------------------------------------------


def test_a_run_plays_the_game_that_is_named_and_not_the_one_it_was_trained_on(run: Path) -> None:
    found = find(str(run), SETTINGS)

    assert found.agent == "evert.envs.twenty_questions.player:short_twenty_questions_agent"


def test_a_run_plays_the_agent_that_is_named(run: Path) -> None:
    own = EvaluateSettings(agent="my.module:agent", test_tasks="my.module:TEST", models=("x",))

    assert find(str(run), own).agent == "my.module:agent"
    assert find("evert-tiny", own).agent == "my.module:agent"


def test_a_run_plays_with_search_if_told_so(run: Path) -> None:
    searching = EvaluateSettings(env="twenty_questions", models=("x",), search=True)

    assert find(str(run), searching).agent.endswith(":searching_short_twenty_questions_agent")


def test_device_threads_and_renderer_are_the_evaluations(run: Path) -> None:
    record = json.loads((run / "run.json").read_text())
    record["settings"] |= {"device": "cuda", "threads": 7, "renderer_name": "role_colon"}
    (run / "run.json").write_text(json.dumps(record))
    asked = EvaluateSettings(
        env="identity", models=("x",), device="cpu", threads=2, renderer_name="qwen3"
    )

    found = weights(find(str(run), asked)).run
    assert (found.device, found.threads, found.renderer_name) == ("cpu", 2, "qwen3")
    unasked = EvaluateSettings(env="identity", models=("x",))
    assert weights(find(str(run), unasked)).run.renderer_name == "role_colon"


def test_a_cap_of_the_evaluation_goes_before_the_runs(run: Path) -> None:
    capped = EvaluateSettings(env="identity", models=("x",), max_tokens=5)

    assert weights(find(str(run), capped)).max_tokens == 5


# -- 3. digests ----------------------------------------------------------------------------------


def trained(run: Path, step: str, content: bytes) -> Path:
    """Weights of a step, on disk."""
    folder = run / "checkpoints" / "r" / "sampler_weights" / step
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(content)
    return folder / "model.safetensors"


def test_a_run_that_was_trained_further_has_another_digest(run: Path) -> None:
    trained(run, "10", b"after ten")
    file = trained(run, "final", b"after twenty")
    before = find(str(run), SETTINGS).digest

    assert find(f"{run}@20", SETTINGS).digest == before
    assert find(f"{run}@10", SETTINGS).digest != before
    file.write_bytes(b"after thirty")
    assert find(str(run), SETTINGS).digest != before


def test_weights_keep_their_digest_where_they_are_moved_to(run: Path) -> None:
    trained(run, "final", b"after twenty")
    before = find(str(run), SETTINGS).digest

    moved = run.rename(run.with_name("moved"))

    assert find(str(moved), SETTINGS).digest == before


@pytest.mark.parametrize(
    "other", [{"max_tokens": 5}, {"renderer_name": "role_colon"}, {"env": "identity"}]
)
def test_what_else_decides_a_reply_is_in_the_digest(run: Path, other: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"env": "twenty_questions", "models": ("x",), **other}

    for name in (str(run), "evert-tiny"):
        assert find(name, EvaluateSettings(**asked)).digest != find(name, SETTINGS).digest


def test_everybody_has_a_digest_of_their_own() -> None:
    names = "evert-tiny", "evert-tiny-20q", "openai:a", "openai:b", "oracle", "random"
    settings = EvaluateSettings(env="twenty_questions", models=("x",), renderer_name="qwen3")

    digests = {find(name, settings).digest for name in (*names, "org/model", "org/other")}

    assert len(digests) == 8
    assert all(re.fullmatch("[0-9a-f]{16}", digest) for digest in digests)


def test_weights_of_a_service_are_told_apart_by_their_paths_and_not_by_their_model() -> None:
    named = EvaluateSettings(env="identity", models=("x",), model_name="evert-tiny")

    digests = {find(name, named).digest for name in ("evert-tiny", "tinker://a/b", "tinker://a/c")}

    assert len(digests) == 3


def test_the_same_name_at_another_address_is_another_model() -> None:
    there = EvaluateSettings(env="twenty_questions", models=("x",), base_url="http://there/v1")

    assert find("openai:a", there).digest != find("openai:a", SETTINGS).digest


# -- 4. mistakes ---------------------------------------------------------------------------------


def test_a_path_that_leads_nowhere_lists_what_may_be_named() -> None:
    with pytest.raises(
        ModelNameError, match=r"no run and no model at 'runs/a/b'.*random or oracle"
    ):
        find("runs/a/b", SETTINGS)


def test_a_player_of_other_games_is_no_model_to_download() -> None:
    with pytest.raises(ModelNameError, match=r"guess_number has no player 'random'.*are: none"):
        find("random", EvaluateSettings(env="guess_number", models=("random",)))


@pytest.mark.parametrize("name", ["runs/nope", "/nowhere", "./nope", "~/nope", "runs/nope@20"])
def test_a_path_that_is_none_is_not_taken_for_a_model_to_download(name: str) -> None:
    with pytest.raises(ModelNameError, match=f"no run and no model at '{re.escape(name)}'"):
        find(name, SETTINGS)


def test_a_name_that_is_nearly_right_is_suggested(run: Path) -> None:
    with pytest.raises(ModelNameError, match=r"Did you mean oracle\?"):
        find("oracel", SETTINGS)
    with pytest.raises(ModelNameError, match=r"Did you mean evert-tiny\?"):
        find("evert-tyni", SETTINGS)
    with pytest.raises(ModelNameError, match=f"Did you mean {re.escape(str(run))}"):
        find(f"{run}n", SETTINGS)


def test_a_step_that_was_not_kept_lists_those_that_were(run: Path) -> None:
    with pytest.raises(ModelNameError, match="no weights after step 12; it has those after 10, 20"):
        find(f"{run}@12", SETTINGS)


def test_a_run_without_weights_says_so(run: Path) -> None:
    (run / "checkpoints.jsonl").unlink()

    with pytest.raises(ModelNameError, match="has no weights yet"):
        find(str(run), SETTINGS)


def test_an_agent_without_a_twin_cannot_search(run: Path) -> None:
    searching = EvaluateSettings(env="identity", models=("x",), search=True)

    with pytest.raises(ValueError, match="identity_agent has no twin with a search tool"):
        find(str(run), searching)


# -- 5. endpoints --------------------------------------------------------------------------------


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


async def three_calls(client: Any) -> float:
    messages: list[Any] = [{"role": "user", "content": "Say something."}]
    for most in (None, 4, 40):
        await client.chat.completions.create(messages=messages, max_tokens=most)
    return 1.0


async def test_an_endpoint_gets_the_temperature_and_the_smaller_cap(endpoint: Server) -> None:
    endpoint.replies = [{"content": "something"}] * 3
    settings = EvaluateSettings(
        env="identity", models=("x",), base_url=endpoint.url, temperature=0.25, max_tokens=12
    )

    with find("openai:gpt", settings).ready(lambda line: None) as player:
        env = ChatAgentEnv(three_calls)
        await do_single_rollout(player.policy(env, 0), env)

    assert [body["temperature"] for body in endpoint.asked] == [0.25] * 3
    assert [body["max_completion_tokens"] for body in endpoint.asked] == [12, 4, 12]


async def test_without_a_cap_only_the_agents_own_goes_out(endpoint: Server) -> None:
    endpoint.replies = [{"content": "something"}] * 3
    settings = EvaluateSettings(env="identity", models=("x",), base_url=endpoint.url)

    with find("openai:gpt", settings).ready(lambda line: None) as player:
        env = ChatAgentEnv(three_calls)
        await do_single_rollout(player.policy(env, 0), env)

    assert [body.get("max_completion_tokens") for body in endpoint.asked] == [None, 4, 40]


async def test_a_player_without_a_model_that_calls_one_is_told_so() -> None:
    with find("oracle", SETTINGS).ready(lambda line: None) as player:
        env = ChatAgentEnv(three_calls)
        with pytest.raises(PolicyError, match="called a model, and it has none"):
            await do_single_rollout(player.policy(env, 0), env)
        await env.close()


# -- 6. seeds ------------------------------------------------------------------------------------


async def say(client: Any) -> str:
    messages = [{"role": "user", "content": "Let's play a game. Say you are 7."}]
    completion = await client.chat.completions.create(messages=messages)
    return str(completion.choices[0].message.content)


def test_equal_images_have_equal_seeds_and_others_have_others() -> None:
    def seed(*images: bytes) -> int:
        chunks: list[Any] = [tinker.EncodedTextChunk(tokens=[1, 2])]
        chunks += [ImageChunk(data=data, format="png") for data in images]
        prompt = tinker.ModelInput(chunks=chunks)
        client: Any = None
        return SeededPolicy(client, 12, 1.0, 7)._seed_of(prompt)

    same = bytes(bytearray(b"a picture"))  # equal, and another object: pickle tells them apart
    once, twice = seed(b"a picture", b"a picture"), seed(b"a picture", same)

    assert once == twice
    assert len({once, seed(b"a picture"), seed(b"a picture", b"another")}) == 3


@pytest.mark.usefixtures("engine")
async def test_a_seed_decides_what_is_said_whatever_is_sampled_beside_it() -> None:
    client = tinker.ServiceClient().create_sampling_client(base_model=BASE_MODEL)

    async def tokens(seed: int) -> list[list[int]]:
        async def agent(client: Any) -> float:
            for _ in range(3):
                await say(client)
            return 0.0

        env = ChatAgentEnv(agent)
        trajectory = await do_single_rollout(SeededPolicy(client, 12, 1.0, seed), env)
        return [list(transition.ac.tokens) for transition in trajectory.transitions]

    alone = await tokens(7)
    await tokens(8)

    assert await tokens(7) == alone
    assert await tokens(8) != alone
    assert len({tuple(turn) for turn in alone}) > 1
