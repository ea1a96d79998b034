"""Who plays, found by name: bases, runs and their steps, weights of a service, players, endpoints.

All play the agent that the evaluation names, on the device and by the renderer that it names.
Digests are of weights and of what else decides what is said, not of names. An endpoint plays by its
own API. Seeds decide what weights say, whatever else is sampled beside them.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tinker
from tests import kit
from tests.trainers.conftest import chat_endpoint
from tinker.types import ImageChunk
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv, RemoteModel
from evert.bridge.tokens.bases import BASE_MODEL
from evert.trainers.config.evaluate import EvaluateSettings
from evert.trainers.config.model_names import ModelNameError, NamedEndpoint, NamedWeights
from evert.trainers.episodes.players import Contestant, find
from evert.trainers.episodes.policies import EndpointPolicy, PolicyError, SeededPolicy


def settings(env: str = "twenty_questions", **given: Any) -> EvaluateSettings:
    return EvaluateSettings(env=env, models=("x",), **given)


def named(found: Contestant) -> NamedWeights:
    assert isinstance(found.named, NamedWeights)
    return found.named


OWN = {"env": "", "agent": "my.module:agent", "test_tasks": "my.module:TEST"}


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


# -- names ---------------------------------------------------------------------------------------

FINAL = "tinker://r/sampler_weights/final"


@pytest.mark.parametrize(
    ("name", "given", "weights", "agent"),
    [
        ("evert-tiny-20q", {}, {"base_model": "evert-tiny-20q"}, ":short_twenty_questions_agent"),
        ("TINY", {}, {"base_model": "TINY"}, ".player:twenty_questions_agent"),  # at full size
        ("RUN", {}, {"model_path": FINAL}, ".player:short_twenty_questions_agent"),
        ("RUN@10", {}, {"model_path": "tinker://r/sampler_weights/10"}, "questions_agent"),
        ("RUN", {"search": True}, {"model_path": FINAL}, ":searching_short_twenty_questions_agent"),
        ("RUN", OWN, {"model_path": FINAL}, "my.module:agent"),
        ("evert-tiny", OWN, {"base_model": "evert-tiny"}, "my.module:agent"),
        (FINAL, {"model_name": "Qwen/Qwen3-8B"}, {"model_path": FINAL}, "questions_agent"),
    ],
)
def test_weights_play_the_agent_that_is_named(
    run: Path, tiny_model: str, name: str, given: Any, weights: dict[str, str], agent: str
) -> None:
    def path(text: str) -> str:
        return text.replace("RUN", str(run)).replace("TINY", tiny_model)

    found = find(path(name), settings(**given))

    assert found.name == path(name)
    assert found.weights == {key: path(value) for key, value in weights.items()}
    assert found.agent.endswith(agent)


def test_a_run_is_asked_for_replies_as_it_was_trained_unless_it_is_said_otherwise(
    run: Path, tiny_model: str
) -> None:
    assert find(str(run), settings()).max_tokens == 9
    assert find(str(run), settings("identity", max_tokens=5)).max_tokens == 5
    assert named(find(tiny_model, settings())).run.max_tokens == 256
    record = json.loads((run / "run.json").read_text())
    record["settings"] |= {"device": "cuda", "threads": 7, "renderer_name": "role_colon"}
    (run / "run.json").write_text(json.dumps(record))
    asked = settings("identity", device="cpu", threads=2, renderer_name="qwen3")

    found = named(find(str(run), asked))
    assert found.checkpoints == run / "checkpoints"
    assert (found.run.device, found.run.threads, found.run.renderer_name) == ("cpu", 2, "qwen3")
    assert named(find(str(run), settings("identity"))).run.renderer_name == "role_colon"


def test_players_and_endpoints_have_names_of_their_own() -> None:
    assert find("oracle", settings()).agent.endswith(":oracle_agent")
    endpoint = find("openai:gpt-5-mini", settings())
    assert isinstance(endpoint.named, NamedEndpoint)
    assert endpoint.agent.endswith(":twenty_questions_agent")


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("runs/a/b", {}, r"no run and no model at 'runs/a/b'.*random or oracle"),
        ("runs/nope", {}, "no run and no model at 'runs/nope'"),
        ("/nowhere", {}, "no run and no model at '/nowhere'"),
        ("~/nope", {}, "no run and no model at '~/nope'"),
        ("runs/nope@20", {}, "no run and no model at 'runs/nope@20'"),
        ("random", {"env": "guess_number"}, r"guess_number has no player 'random'.*are: none"),
        ("oracel", {}, r"Did you mean oracle\?"),
        ("evert-tyni", {}, r"Did you mean evert-tiny\?"),
        ("RUNn", {}, "Did you mean RUN"),
        ("RUN@12", {}, "no weights after step 12; it has those after 10, 20"),
        ("tinker://abc/sampler_weights/final", {}, "model_name=Qwen/Qwen3-8B"),
        ("RUN", {"env": "identity", "search": True}, "identity_agent has no twin with a search"),
    ],
)
def test_a_name_that_stands_for_nothing_is_refused_with_what_there_is(
    run: Path, name: str, given: Any, said: str
) -> None:
    with pytest.raises(ValueError, match=said.replace("RUN", re.escape(str(run)))):
        find(name.replace("RUN", str(run)), settings(**given))


def test_a_run_without_weights_says_so(run: Path) -> None:
    (run / "checkpoints.jsonl").unlink()

    with pytest.raises(ModelNameError, match="has no weights yet"):
        find(str(run), settings())


# -- digests ----------------------------------------------------------------------------------


def trained(run: Path, step: str, content: bytes) -> Path:
    """Weights of a step, on disk."""
    folder = run / "checkpoints" / "r" / "sampler_weights" / step
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(content)
    return folder / "model.safetensors"


def test_a_digest_is_of_the_weights_wherever_they_are(run: Path) -> None:
    trained(run, "10", b"after ten")
    file = trained(run, "final", b"after twenty")
    before = find(str(run), settings()).digest

    assert find(f"{run}@20", settings()).digest == before
    assert find(f"{run}@10", settings()).digest != before
    moved = run.rename(run.with_name("moved"))
    assert find(str(moved), settings()).digest == before
    (moved / file.relative_to(run)).write_bytes(b"after thirty")
    assert find(str(moved), settings()).digest != before


def test_everybody_has_a_digest_of_their_own_in_which_is_what_else_decides_a_reply(
    run: Path,
) -> None:
    names = "evert-tiny", "evert-tiny-20q", "openai:a", "openai:b", "oracle", "random"
    told = settings(renderer_name="qwen3")
    digests = [find(name, told).digest for name in (*names, "org/model", "org/other", str(run))]
    paths = ("evert-tiny", "tinker://a/b", "tinker://a/c")
    digests += [find(name, settings("identity", model_name="evert-tiny")).digest for name in paths]
    for other in ({"max_tokens": 5}, {"renderer_name": "role_colon"}, {}):
        digests += [find(name, settings(**other)).digest for name in ("evert-tiny", str(run))]
    digests.append(find("openai:a", settings(base_url="http://there/v1")).digest)

    assert len(set(digests)) == len(digests)
    assert all(re.fullmatch("[0-9a-f]{16}", digest) for digest in digests)


# -- endpoints -----------------------------------------------------------------------------------


async def searching(client: Any) -> float:
    messages: list[Any] = [kit.user("What flies?")]
    tools = [kit.tool("search")]
    first = await client.chat.completions.create(messages=messages, tools=tools)
    (call,) = first.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"query": "what flies"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "a bird"}
    messages += [first.choices[0].message, result]
    second = await client.chat.completions.create(messages=messages, tools=tools)
    return float(second.choices[0].message.content == "Is it a bird?")


async def test_an_endpoint_plays_with_text_and_with_tool_calls() -> None:
    function = {"name": "search", "arguments": '{"query": "what flies"}'}
    call = {"id": "c1", "type": "function", "function": function}
    asked: list[dict[str, Any]] = []

    def reply(body: dict[str, Any], key: str) -> dict[str, Any]:
        asked.append(body)
        said = {"content": "Is it a bird?"} if len(asked) > 1 else {"tool_calls": [call]}
        return {"role": "assistant", "content": None, **said}

    with chat_endpoint(reply) as url:
        env = ChatAgentEnv(searching)
        policy = EndpointPolicy(env, RemoteModel("gpt", url))
        trajectory = await do_single_rollout(policy, env)

    assert kit.reward(trajectory) == 1.0
    assert [body["model"] for body in asked] == ["gpt", "gpt"]
    assert asked[1]["messages"][-1]["content"] == "a bird"
    assert trajectory.transitions[-1].metrics["tools/calls"] == 1


async def three_calls(client: Any) -> float:
    for most in (None, 4, 40):
        await kit.call(client, "Say something.", max_tokens=most)
    return 1.0


@pytest.mark.parametrize(("cap", "sent"), [(12, [12, 4, 12]), (None, [None, 4, 40])])
async def test_an_endpoint_gets_the_temperature_and_the_smaller_cap(
    cap: int | None, sent: list[int | None]
) -> None:
    asked: list[dict[str, Any]] = []

    def reply(body: dict[str, Any], key: str) -> dict[str, Any]:
        asked.append(body)
        return {"role": "assistant", "content": "something"}

    with chat_endpoint(reply) as url:
        given = settings("identity", base_url=url, temperature=0.25, max_tokens=cap)
        with find("openai:gpt", given).ready(lambda line: None) as player:
            env = ChatAgentEnv(three_calls)
            await do_single_rollout(player.policy(env, 0), env)

    assert [body["temperature"] for body in asked] == [0.25] * 3
    assert [body.get("max_completion_tokens") for body in asked] == sent


async def test_a_player_without_a_model_that_calls_one_is_told_so() -> None:
    with find("oracle", settings()).ready(lambda line: None) as player:
        env = ChatAgentEnv(three_calls)
        with pytest.raises(PolicyError, match="called a model, and it has none"):
            await do_single_rollout(player.policy(env, 0), env)
        await env.close()


# -- seeds ------------------------------------------------------------------------------------


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
                await kit.ask(client, "Let's play a game. Say you are 7.")
            return 0.0

        env = ChatAgentEnv(agent)
        trajectory = await do_single_rollout(SeededPolicy(client, 12, 1.0, seed), env)
        return [list(transition.ac.tokens) for transition in trajectory.transitions]

    alone = await tokens(7)
    await tokens(8)

    assert await tokens(7) == alone
    assert await tokens(8) != alone
    assert len({tuple(turn) for turn in alone}) > 1
