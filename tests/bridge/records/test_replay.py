"""Replaying agents from their records, reporting differences, and branching."""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.bridge.records.test_recording import CALL, calls_a_tool, chat, compacts
from tests.bridge.test_parallel import PATIENCE, Together
from tests.kit import Numbered, ask, assistant, call, play_recorded, policy_of, rewards, user
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.data_processing import assemble_training_data, compute_advantages
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.rollouts import do_group_rollout, do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import (
    BranchDataset,
    BranchEnv,
    ChatAgentEnv,
    Recorder,
    ReplayError,
    ReplayPolicy,
    ScriptedPolicy,
    read_records,
    replay,
)
from evert.bridge.env.parallel import do_parallel_rollout
from evert.bridge.errors import InvalidDatasetError
from evert.bridge.records.record import RolloutRecord
from evert.bridge.tokens.bases import base_tokenizer


def facts(trajectory: Trajectory) -> list[tuple[Any, ...]]:
    """Return the parts of each transition that a replay must reproduce."""
    return [
        (turn.ob.to_ints(), turn.ac, turn.reward, turn.episode_done, turn.metrics)
        for turn in trajectory.transitions
    ]


class Says:
    """An agent that makes up to three calls. The question of the second call can be set."""

    def __init__(self, second: str = "again?", *, calls: int = 2) -> None:
        self.questions = ["first?", second, "third?"][:calls]

    async def __call__(self, client: Any) -> float:
        messages: list[Any] = []
        for question in self.questions:
            messages.append(user(question))
            messages.append(assistant((await ask(client, *messages)).strip()))
        return 1.0


async def record_of(path: Path, agent: Any, *replies: str) -> RolloutRecord:
    return (await play_recorded(path, agent, *replies))[0]


play_together = partial(play_recorded, runner=do_parallel_rollout)


async def is_cut(client: Any) -> float:
    [choice] = (await call(client, "one?", max_tokens=2, logprobs=True)).choices
    assert choice.logprobs.content
    return float(choice.finish_reason == "length")


async def draws(client: Any) -> float:
    number = client.rng.random()
    await ask(client, f"{number}?")
    return float(number)


@pytest.mark.parametrize(
    ("agent", "replies"),
    [
        (Says(), ["one ", "two"]),
        (calls_a_tool, [CALL, "2"]),
        (compacts, ["first", "second", "third", "fourth"]),
        (is_cut, ["a long reply"]),
        (draws, ["yes"]),
        (partial(chat, task={"a": 1}), ["one", "two", "three"]),
    ],
)
async def test_a_replay_reproduces_the_record(
    tmp_path: Path, agent: Any, replies: list[str]
) -> None:
    record, trajectory = await play_recorded(tmp_path, agent, *replies)

    assert facts(await replay(record, agent)) == facts(trajectory) == facts(record.trajectory())
    assert record.trajectory().stop_reason == trajectory.stop_reason == "completed"
    for ours, theirs in zip(record.trajectory().transitions, trajectory.transitions, strict=True):
        assert ours.logs == theirs.logs
    if agent is is_cut:
        assert trajectory.transitions[0].ac.stop_reason == "length"
    if agent is draws:
        branch = await do_single_rollout(ScriptedPolicy(["no"]), BranchEnv(record, 0, draws))
        assert rewards(branch) == rewards(trajectory)


async def test_parallel_calls_are_matched_in_any_order(tmp_path: Path) -> None:
    order = [0, 1, 2]

    async def gathers(client: Any) -> float:
        calls = (ask(client, f"number {number}") for number in order)
        replies = dict(zip(order, await asyncio.gather(*calls), strict=True))
        return float(replies == {0: "a", 1: "b", 2: "c"})

    record = await record_of(tmp_path, gathers, "a", "b", "c")
    order.reverse()

    assert rewards(await replay(record, gathers)) == [0.0, 0.0, 1.0]


class LaterFirst(ScriptedPolicy):
    """A policy that repeats the caller's name. It answers callers in reverse order of names."""

    def __init__(self, never: str = "") -> None:
        super().__init__(lambda prompt: f"you are {self._name(prompt)}")
        self._never = never
        self._asked: list[str] = []
        self._order = asyncio.Condition()

    @staticmethod
    def _name(prompt: str) -> str:
        return str(re.findall(r"I am (\w+)", prompt)[-1])

    async def __call__(self, model_input: Any, stop: Any, **options: Any) -> TokensWithLogprobs:
        name = self._name(base_tokenizer().decode(model_input.to_ints()))
        if name == self._never:
            await asyncio.Event().wait()
        self._asked.append(name)
        for _ in range(20):  # let the other callers make their calls
            await asyncio.sleep(0)
        async with self._order:
            await self._order.wait_for(lambda: name == max(self._asked))
            self._asked.remove(name)
            self._order.notify_all()
        return await super().__call__(model_input, stop, **options)


class Meets:
    """An agent with parallel sub-agents, each of which makes two calls."""

    def __init__(self, *names: str) -> None:
        self.names = names

    async def __call__(self, client: Any) -> float:
        await asyncio.gather(*(self.sub(client, name) for name in self.names))
        return 0.5

    async def sub(self, client: Any, name: str) -> None:
        messages = [user(f"I am {name}")]
        for _ in range(2):
            reply = await ask(client, *messages)
            client.reward(ord(name[0]) - 64)
            client.log(who=name)
            client.metric("replies", len(messages))
            messages += [assistant(reply), user(f"I am {name}!")]


async def test_parallel_calls_are_replayed_or_their_difference_is_reported(tmp_path: Path) -> None:
    record, trajectory = await play_together(tmp_path, agent := Meets("A", "B", "C"), LaterFirst())
    replayed = await replay(record, agent)

    assert trajectory.transitions[0].logs["who"] == "C"
    assert facts(replayed) == facts(trajectory)
    for name in ("who", "lineage"):
        ours, theirs = (
            [t.logs[name] for t in rollout.transitions] for rollout in (replayed, trajectory)
        )
        assert ours == theirs
    with pytest.raises(ReplayError, match=r"turn 0: .*'I am C' within agent_timeout=0\.2 s"):
        await replay(record, Meets("A", "B"), agent_timeout=0.2)
    with pytest.raises(ReplayError, match="is now 'I am Bob'"):
        await replay(record, Meets("A", "B", "Bob"), agent_timeout=0.2)


async def test_calls_sampled_concurrently_are_replayed_in_the_recorded_order(
    tmp_path: Path,
) -> None:
    record, trajectory = await play_together(tmp_path, agent := Meets("A", "B", "C"), LaterFirst())
    env = ChatAgentEnv(agent, seed=record.row["seed"])

    assert facts(await do_parallel_rollout(ReplayPolicy(record, env), env)) == facts(trajectory)


@pytest.mark.parametrize("play", [do_single_rollout, do_parallel_rollout])
async def test_a_branch_of_parallel_calls_starts_at_its_turn(tmp_path: Path, play: Any) -> None:
    record, _ = await play_together(tmp_path, agent := Meets("A", "B", "C"), LaterFirst())

    for turn in range(record.turns):
        env = BranchEnv(record, turn, agent)
        branch = await play(LaterFirst(), env)
        assert branch.transitions[0].ob.to_ints() == record.prompts[turn]
        assert len(branch.transitions) == record.turns - turn
        rewarded = [{"A": 1, "B": 2, "C": 3}[str(t.logs["who"])] for t in branch.transitions]
        assert rewards(branch) == [*rewarded[:-1], rewarded[-1] + 0.5]
        assert env.earned + sum(rewards(branch)) == 12.5


class Counts(ScriptedPolicy):
    """A policy that counts how many calls are pending at the same time."""

    waiting = most = 0

    async def __call__(self, *args: Any, **options: Any) -> TokensWithLogprobs:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        for _ in range(50):
            await asyncio.sleep(0)
        self.waiting -= 1
        return await super().__call__(*args, **options)


async def test_calls_that_are_pending_when_a_branch_starts_are_sampled_concurrently(
    tmp_path: Path,
) -> None:
    record, _ = await play_together(tmp_path, agent := Meets("A", "B", "C"), LaterFirst())

    for turn in (0, 1, 2):
        policy = Counts(lambda _: "yes")
        await do_parallel_rollout(policy, BranchEnv(record, turn, agent))
        assert policy.most == 3


async def test_a_replayed_call_can_wait_longer_than_the_sampling_timeout(tmp_path: Path) -> None:
    asked_again = asyncio.Event()

    async def reply(prompt: str) -> str:
        if "again" in prompt:
            asked_again.set()
        elif "slow" in prompt:
            await asked_again.wait()
        return "yes"

    async def agent(client: Any) -> float:
        async def works() -> None:
            await ask(client, "first")
            await asyncio.sleep(0.3)
            await ask(client, "again")

        await asyncio.gather(ask(client, "slow"), works())
        return 1.0

    record, _ = await play_together(tmp_path, agent, ScriptedPolicy(reply))
    limits = RolloutLimits(sampling_turn_timeout_seconds=0.1)
    assert rewards(await replay(record, agent, limits=limits))[-1] == 1.0
    branch = BranchEnv(record, -1, agent, limits=limits)
    assert rewards(await do_single_rollout(ScriptedPolicy(["yes"]), branch)) == [1.0]


async def test_a_given_up_call_is_given_up_again_in_a_replay(tmp_path: Path) -> None:
    async def guarded(client: Any) -> float:
        slow, guard = (asyncio.create_task(ask(client, f"I am {name}")) for name in "AC")
        reply = await guard
        for _ in range(20):  # simulate a framework that takes a while to react to its guardrail
            await asyncio.sleep(0)
        slow.cancel()
        return float(reply == "you are C")

    record, trajectory = await play_together(tmp_path, guarded, LaterFirst(never="A"))

    assert record.turns == 1
    assert facts(await replay(record, guarded)) == facts(trajectory)


def asks(*texts: str, tools: Any = None) -> Callable[[Any], Awaitable[float]]:
    async def agent(client: Any) -> float:
        await ask(client, *texts, tools=tools)
        return 1.0

    return agent


ROLE_COLON = get_renderer("role_colon", base_tokenizer(), model_name="evert-tiny")
SECOND = r"messages\[2\]\.content of the user was 'again\?' and is now 'again!'\."
DIFFERENCES: list[tuple[Any, Any, dict[str, Any], str]] = [
    (Says(), Says("again!"), {}, rf"differs from its record at turn 1 \(of 2\): {SECOND}"),
    (Says(), Says(calls=3), {}, r"at turn 2: it called .*, with 'third\?'.* after 2 calls"),
    (Says(), Says(calls=1), {}, r"at turn 1: it finished. In the record, it .*, with 'again\?'"),
    (Says(), Says(), {"renderer": ROLE_COLON}, "Expected the renderer qwen3_instruct for evert-ti"),
    (asks("one?", "two?"), asks("one?"), {}, r"messages\[1\] is missing"),
    (asks("one?"), asks("one?", "two?"), {}, r"messages\[1\] is new: .*two\?"),
    (calls_a_tool, asks("1 + 1?"), {}, "turn 0 .*: tools was .* and is now"),
]


@pytest.mark.parametrize(("agent", "other", "options", "said"), DIFFERENCES, ids=range(7))
async def test_the_error_describes_the_first_turn_that_differs(
    tmp_path: Path, agent: Any, other: Any, options: Any, said: str
) -> None:
    record = await record_of(tmp_path, agent, CALL if agent is calls_a_tool else "one", "two")

    with pytest.raises(ReplayError, match=said):
        await replay(record, other, **options)


async def test_a_replay_policy_without_its_env_still_reports_the_turn(tmp_path: Path) -> None:
    record = await record_of(tmp_path, Says(), "one", "two")
    env = ChatAgentEnv(Says("again!"))

    with pytest.raises(ReplayError, match=r"turn 1 \(of 2\): The prompt has \d+ tokens and the"):
        await do_single_rollout(ReplayPolicy(record), env)
    await env.close()


async def test_a_branch_starts_at_its_turn(tmp_path: Path) -> None:
    record = await record_of(tmp_path, Says(calls=3), "one", "two", "three")
    env, policy = BranchEnv(record, 1, Says(calls=3)), policy_of("other", "end")
    trajectory = await do_single_rollout(policy, env)

    first, last = trajectory.transitions
    assert first.ob.to_ints() == record.prompts[1]
    assert last.ob.to_ints()[: first.ob.length] == record.prompts[1]
    assert [turn.ac.tokens for turn in trajectory.transitions] == policy.actions
    assert last.reward == 1.0


async def test_a_branch_has_only_its_own_turns_and_rewards(tmp_path: Path) -> None:
    async def paid(client: Any, text: str) -> None:
        await ask(client, text)
        client.reward(0.5)

    async def in_turn(client: Any) -> None:
        for text in ("one", "two"):
            await paid(client, text)

    async def side_by_side(client: Any) -> None:
        for text in ("one", "two"):
            await asyncio.gather(paid(client, f"{text} a"), paid(client, f"{text} b"))

    for agent, turn, earned in ((in_turn, -1, 0.5), (side_by_side, 2, 1.0)):
        env = BranchEnv(await record_of(tmp_path, agent, *"wxyz"[: round(4 * earned)]), turn, agent)
        policy = policy_of(lambda prompt: "said")
        trajectory = await do_parallel_rollout(policy, env)

        assert ["two" in prompt for prompt in policy.prompts] == [True] * round(2 * earned)
        assert env.earned == earned
        assert rewards(trajectory) == [0.5] * round(2 * earned)


async def test_a_branch_samples_a_call_that_arrives_while_another_is_being_sampled(
    tmp_path: Path,
) -> None:
    async def agent(client: Any) -> float:
        async def later(pause: float) -> None:
            await asyncio.sleep(pause)
            await ask(client, f"after {pause}")

        await ask(client, "first")
        await asyncio.gather(later(0.0), later(0.05))
        return 1.0

    env = BranchEnv(await record_of(tmp_path, agent, *"xyz"), 1, agent)
    async with asyncio.timeout(PATIENCE):
        await do_parallel_rollout(Together(2), env)


async def test_an_agent_that_differs_before_the_turn_is_an_error(tmp_path: Path) -> None:
    record = await record_of(tmp_path, Says(), "one", "two")

    for agent, message in ((Says("no?"), r"messages\[2\]"), (Says(calls=1), "the episode ended")):
        env = BranchEnv(record, 1, agent)
        with pytest.raises(ReplayError, match=message):
            await env.initial_observation()
        await env.close()
    with pytest.raises(InvalidDatasetError, match="record with 2 turns has no turn 2"):
        BranchEnv(record, 2, Says())
    longer = await record_of(tmp_path / "longer", Says(calls=3), "one", "two", "three")
    with pytest.raises(InvalidDatasetError, match="record with 2 turns has no turn 2"):
        BranchDataset(Says(), [longer, record], turn=2, batch_size=2, group_size=1)


async def test_a_batch_of_branches_trains_on_each_sampled_token_once(tmp_path: Path) -> None:
    for replies in (["one", "two", "three"], ["four", "five", "six"]):
        await play_recorded(tmp_path, Says(calls=3), *replies)
    records, recorder = [*read_records(tmp_path)], Recorder(tmp_path / "branches.jsonl")
    sizes: Any = {"batch_size": 2, "group_size": 3}
    dataset = BranchDataset(Says(calls=3), records, turn=lambda record: 1, record=recorder, **sizes)
    sampled = Counter[float]()
    policy: Numbered = Numbered(lambda prompt: f"say {len(policy.actions)}")
    groups = [await do_group_rollout(builder, policy) for builder in dataset.get_batch(0)]
    for group in groups:
        group.final_rewards_G = [0.0, 1.0, 2.0]  # with equal rewards, all advantages would be 0
    data, _ = assemble_training_data(groups, compute_advantages(groups))
    for datum in data:
        mask = datum.loss_fn_inputs["mask"].to_numpy()
        sampled.update(datum.loss_fn_inputs["logprobs"].to_numpy()[mask > 0].tolist())

    assert len(groups) == 2
    assert sampled == Counter(dict.fromkeys(policy.logprobs, 1))
    branches = [*read_records(recorder.path)]
    assert [record.turns for record in branches] == [2] * 6
    assert [m["content"] for m in branches[0].messages(0)][:3] == ["first?", "one", "again?"]
