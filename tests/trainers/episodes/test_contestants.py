"""Contestants of an evaluation, looked up by name; endpoints; seeds that determine the replies."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tinker
from tests.kit import ask, assistant, call, tool, user
from tests.trainers.kit import chat_endpoint
from tinker.types import ImageChunk
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv, RemoteModel
from evert.bridge.tokens.bases import BASE_MODEL
from evert.trainers.config.evaluate import EvaluateSettings
from evert.trainers.config.frozen_models import pin_steps
from evert.trainers.config.model_names import ModelNameError, ModelRef
from evert.trainers.config.plan import prepare
from evert.trainers.episodes.players import Contestant, find
from evert.trainers.episodes.policies import EndpointPolicy, PolicyError, SeededPolicy

QUESTIONS, IDENTITY = {"env": "twenty_questions"}, {"env": "identity"}
SHORT = "evert.envs.twenty_questions.player:short_twenty_questions_agent"


def found(name: str, given: Any = QUESTIONS, **settings: Any) -> Contestant:
    """Look up a contestant by name in an evaluation with these settings."""
    chosen = EvaluateSettings(**{"models": ("x",), **given, **settings})
    return find(name, prepare(chosen, [name]))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Write the checkpoint records of an identity run and return its folder."""
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


def test_a_base_plays_the_agent_that_it_was_trained_for(tiny_model: str) -> None:
    base, folder = found("evert-tiny-20q"), found(tiny_model)
    assert base.weights == {"base_model": "evert-tiny-20q"}
    assert base.agent == base.run.agent == SHORT
    assert folder.weights == {"base_model": tiny_model}
    assert folder.agent.endswith(":twenty_questions_agent")
    assert folder.max_tokens == 256
    searching = found("evert-tiny-20q", search=True)
    assert searching.agent.endswith(":searching_short_twenty_questions_agent")
    name = "tinker://abc/sampler_weights/final"
    there = found(name, IDENTITY, model_name="Qwen/Qwen3-8B")
    assert (there.weights, there.run.model_name) == ({"model_path": name}, "Qwen/Qwen3-8B")
    assert found("oracle").agent.endswith(":oracle_agent")
    assert isinstance(found("openai:gpt-5-mini").model, RemoteModel)
    assert found("openai:gpt-5-mini").agent.endswith(":twenty_questions_agent")


def test_a_run_plays_its_last_weights_or_those_of_a_step_with_its_token_limit(run: Path) -> None:
    last, early = found(str(run)), found(f"{run}@10")
    assert (last.name, last.max_tokens) == (str(run), 9)
    assert isinstance(last.model, ModelRef)
    assert last.model.checkpoints == run / "checkpoints"
    paths = [each.weights["model_path"] for each in (last, early)]
    assert paths == ["tinker://r/sampler_weights/final", "tinker://r/sampler_weights/10"]


def test_a_run_can_play_another_game_or_agent(run: Path) -> None:
    own = {"agent": f"{__name__}:searching", "test_tasks": "evert.envs.identity:TEST_TASKS"}
    assert found(str(run)).agent == SHORT
    assert found(str(run), search=True).agent == SHORT.replace(":", ":searching_")
    assert [found(name, own).agent for name in (str(run), "evert-tiny")] == [own["agent"]] * 2


def test_device_threads_renderer_and_token_limit_come_from_the_evaluations_settings(
    run: Path,
) -> None:
    record = json.loads((run / "run.json").read_text())
    record["settings"] |= {"device": "cuda", "threads": 7, "renderer_name": "role_colon"}
    (run / "run.json").write_text(json.dumps(record))
    asked: dict[str, Any] = {"device": "cpu", "threads": 2, "renderer_name": "qwen3"}
    plays = found(str(run), IDENTITY, **asked, max_tokens=5)
    assert asked == {name: getattr(plays.run, name) for name in asked}
    assert plays.max_tokens == 5
    assert found(str(run), IDENTITY).run.renderer_name == "role_colon"


def test_a_digest_depends_on_the_weights_and_not_on_their_path(run: Path) -> None:
    for step in ("10", "final"):
        folder = run / "checkpoints" / "r" / "sampler_weights" / step
        folder.mkdir(parents=True)
        (file := folder / "model.safetensors").write_bytes(step.encode())
    before = found(str(run)).digest
    assert found(f"{run}@20").digest == before
    assert found(f"{run}@10").digest != before
    moved = run.rename(run.with_name("moved"))
    assert found(str(moved)).digest == before
    (moved / file.relative_to(run)).write_bytes(b"after thirty")
    assert found(str(moved)).digest != before


def test_the_path_of_a_run_may_contain_an_at_sign(run: Path) -> None:
    digests = [found(name).digest for name in (str(run), f"{run}@10")]
    (home := run.parent / "me@example.org").mkdir()
    for name in ("run", "run@10", "run@x=1"):
        moved = run = run.rename(home / name)
        assert [found(str(moved)).digest, found(f"{moved}@10").digest] == digests
        assert pin_steps({"judge": str(moved)}, {}) == {"judge": f"{moved}@20"}
    with pytest.raises(ModelNameError, match=f"{run}@12: the run in {run} has no weights for"):
        found(f"{run}@12")


@pytest.mark.parametrize(
    "other",
    [
        {"max_tokens": 5}, IDENTITY, {"limits": {"max_turns": "3"}}, {"on_truncation": "end"},
        {"renderer_name": "role_colon"}, {"frozen": {"judge": "evert-tiny"}},
    ],
)  # fmt: skip
def test_settings_that_affect_replies_are_in_the_digest(run: Path, other: dict[str, Any]) -> None:
    for name in (str(run), "evert-tiny"):
        assert found(name, **other).digest != found(name).digest
        assert found(name, agent_timeout=9.0, close_timeout=1.0).digest == found(name).digest


def test_a_digest_does_not_depend_on_the_order_of_settings() -> None:
    limits = {"max_turns": "3", "max_trajectory_tokens": "100"}
    turned = dict(reversed(limits.items()))
    assert found("oracle", limits=limits).digest == found("oracle", limits=turned).digest


def test_every_contestant_has_its_own_digest() -> None:
    names = ["evert-tiny", "evert-tiny-20q", "openai:a", "openai:b", "oracle", "random"]
    names += ["org/model", "org/other", "tinker://a/b", "tinker://a/c"]
    asked = {**QUESTIONS, "renderer_name": "qwen3"}
    digests = [found(name, asked, model_name="evert-tiny").digest for name in names]
    digests.append(found("openai:a", asked, base_url="http://there/v1").digest)
    assert len({*digests}) == len(names) + 1
    assert all(re.fullmatch("[0-9a-f]{16}", digest) for digest in digests)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("runs/a/b", r"no run or model at 'runs/a/b'.*random or oracle"),
        *((each, f"no run or model at '{each}'") for each in ("/no", "~/no", "runs/n@20")),
        ("oracel", r"Did you mean oracle\?"),
        ("evert-tyni", r"Did you mean evert-tiny\?"),
        ("RUNn", r"Did you mean /.*/run\?"),
        ("RUN@12", "no weights for step 12, only for 10, 20"),
        ("tinker://abc/sampler_weights/final", "model_name=Qwen/Qwen3-8B"),
    ],
)
def test_an_unknown_name_is_refused_with_the_valid_names(run: Path, name: str, said: str) -> None:
    with pytest.raises(ModelNameError, match=said):
        found(name.replace("RUN", str(run)))
    with pytest.raises(ModelNameError, match=r"guess_number has no player 'random'.*no players"):
        found("random", {"env": "guess_number"})
    (run / "checkpoints.jsonl").unlink()
    with pytest.raises(ModelNameError, match="has no weights yet"):
        found(str(run))


@pytest.fixture
def endpoint() -> Iterator[SimpleNamespace]:
    """Yield an endpoint with its address, its replies, and the requests that it received."""
    made = SimpleNamespace(replies=[], asked=[])

    def reply(body: dict[str, Any], key: str) -> dict[str, Any]:
        made.asked.append(body)
        return {**assistant(""), **made.replies.pop(0)}

    with chat_endpoint(reply) as made.url:
        yield made


async def searching(client: Any) -> float:
    messages: list[Any] = [user("What flies?")]
    first = (await call(client, *messages, tools=[tool("search")])).choices[0].message
    (asked,) = first.tool_calls
    assert json.loads(asked.function.arguments) == {"query": "what flies"}
    messages += [first, {"role": "tool", "tool_call_id": asked.id, "content": "a bird"}]
    return float(await ask(client, *messages, tools=[tool("search")]) == "Is it a bird?")


async def test_an_endpoint_plays_with_text_and_with_tool_calls(endpoint: SimpleNamespace) -> None:
    function = {"name": "search", "arguments": '{"query": "what flies"}'}
    asks = {"content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    endpoint.replies = [asks, {"content": "Is it a bird?"}]
    env = ChatAgentEnv(searching)
    policy = EndpointPolicy(env, RemoteModel("gpt", endpoint.url))
    trajectory = await do_single_rollout(policy, env)
    assert sum(transition.reward for transition in trajectory.transitions) == 1.0
    assert [body["model"] for body in endpoint.asked] == ["gpt", "gpt"]
    assert endpoint.asked[1]["messages"][-1]["content"] == "a bird"
    assert trajectory.transitions[-1].metrics["tools/calls"] == 1


async def three_calls(client: Any) -> float:
    for most in (None, 4, 40):
        await ask(client, max_tokens=most)
    return 1.0


@pytest.mark.parametrize(("cap", "sent"), [(12, [12, 4, 12]), (None, [None, 4, 40])])
async def test_an_endpoint_receives_the_temperature_and_the_smaller_token_limit(
    endpoint: SimpleNamespace, cap: int | None, sent: list[int | None]
) -> None:
    endpoint.replies = [{"content": "something"}] * 3
    asked: dict[str, Any] = {"base_url": endpoint.url, "temperature": 0.25, "max_tokens": cap}
    with found("openai:gpt", IDENTITY, **asked).ready(lambda line: None) as player:
        env = ChatAgentEnv(three_calls)
        await do_single_rollout(player.policy(env, 0), env)
    assert [body["temperature"] for body in endpoint.asked] == [0.25] * 3
    assert [body.get("max_completion_tokens") for body in endpoint.asked] == sent


async def test_a_player_without_a_model_that_calls_one_gets_an_error() -> None:
    with found("oracle").ready(lambda line: None) as player:
        env = ChatAgentEnv(three_calls)
        with pytest.raises(PolicyError, match="has no model, but made a model call"):
            await do_single_rollout(player.policy(env, 0), env)
        await env.close()


def test_equal_images_give_equal_seeds_and_different_images_different_ones() -> None:
    def seed(*images: bytes) -> int:
        chunks: list[Any] = [tinker.EncodedTextChunk(tokens=[1, 2])]
        chunks += [ImageChunk(data=data, format="png") for data in images]
        client: Any = None
        return SeededPolicy(client, 12, 1.0, 7)._seed_of(tinker.ModelInput(chunks=chunks))

    same = bytes(bytearray(b"a picture"))  # equal, but pickled differently
    once = seed(b"a picture", b"a picture")
    assert once == seed(b"a picture", same)
    assert len({once, seed(b"a picture"), seed(b"a picture", b"another")}) == 3


@pytest.mark.usefixtures("engine")
async def test_a_seed_determines_a_reply_regardless_of_what_else_is_sampled() -> None:
    client = tinker.ServiceClient().create_sampling_client(base_model=BASE_MODEL)

    async def tokens(seed: int) -> list[list[int]]:
        async def agent(client: Any) -> float:
            for _ in range(3):
                await ask(client, "Let's play a game. Say you are 7.")
            return 0.0

        env = ChatAgentEnv(agent)
        trajectory = await do_single_rollout(SeededPolicy(client, 12, 1.0, seed), env)
        return [list(transition.ac.tokens) for transition in trajectory.transitions]

    alone = await tokens(7)
    await tokens(8)
    assert await tokens(7) == alone
    assert await tokens(8) != alone
    assert len({tuple(turn) for turn in alone}) > 1
