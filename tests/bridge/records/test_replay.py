"""Agents played again from their records, and where they differ.

same         the replies of the record give the transitions of the record, calls that met included
differences  the first turn at which the agent itself differs, and the message
branches     from a turn on, sampled anew; each sampled token is trained once
"""

import asyncio
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.bridge.records.test_recording import CALL, calls_a_tool, chat, compacts, recorded
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.data_processing import assemble_training_data, compute_advantages
from tinker_cookbook.rl.rollouts import do_group_rollout, do_single_rollout
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup

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
    """What of each transition has to be the same."""
    return [
        (turn.ob.to_ints(), turn.ac, turn.reward, turn.episode_done, turn.metrics)
        for turn in trajectory.transitions
    ]


class Says:
    """An agent of two calls whose second question can be another."""

    def __init__(self, second: str = "again?", *, calls: int = 2) -> None:
        self.questions = ["first?", second, "third?"][:calls]

    async def __call__(self, client: Any) -> float:
        messages: list[Any] = []
        for question in self.questions:
            messages.append({"role": "user", "content": question})
            completion = await client.chat.completions.create(messages=messages)
            content = completion.choices[0].message.content.strip()
            messages.append({"role": "assistant", "content": content})
        return 1.0


async def record_of(path: Path, agent: Any, *replies: str) -> RolloutRecord:
    return (await recorded(path, agent, replies))[0]


# -- same ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "replies"),
    [
        (Says(), ["one ", "two"]),
        (calls_a_tool, [CALL, "2"]),
        (compacts, ["first", "second", "third", "fourth"]),
    ],
)
async def test_a_replay_gives_the_transitions_of_the_record(
    tmp_path: Path, agent: Any, replies: list[str]
) -> None:
    record, played = await recorded(tmp_path, agent, replies)

    assert facts(await replay(record, agent)) == facts(played) == facts(record.trajectory())


async def test_log_probabilities_and_a_cut_reply_come_back(tmp_path: Path) -> None:
    async def short(client: Any) -> float:
        completion = await client.chat.completions.create(
            messages=[{"role": "user", "content": "one?"}], max_tokens=2, logprobs=True
        )
        assert completion.choices[0].logprobs.content
        return float(completion.choices[0].finish_reason == "length")

    record, played = await recorded(tmp_path, short, ["a long reply"])

    assert played.transitions[0].ac.stop_reason == "length"
    assert facts(await replay(record, short)) == facts(played)


async def test_calls_made_side_by_side_are_found_in_whatever_order(tmp_path: Path) -> None:
    order = [0, 1, 2]

    async def gathers(client: Any) -> float:
        async def ask(number: int) -> str:
            completion = await client.chat.completions.create(
                messages=[{"role": "user", "content": f"number {number}"}]
            )
            return str(completion.choices[0].message.content)

        said = dict(zip(order, await asyncio.gather(*map(ask, order)), strict=True))
        return float(said == {0: "a", 1: "b", 2: "c"})

    record, _ = await recorded(tmp_path, gathers, ["a", "b", "c"])
    order.reverse()
    again = await replay(record, gathers)

    assert [turn.reward for turn in again.transitions] == [0.0, 0.0, 1.0]


class Slow(ScriptedPolicy):
    """Says what it was asked, the later names the sooner."""

    def __init__(self) -> None:
        super().__init__(lambda prompt: f"you are {self._name(prompt)}")

    @staticmethod
    def _name(prompt: str) -> str:
        return str(re.findall(r"I am (\w+)", prompt)[-1])

    async def __call__(self, model_input: Any, stop: Any, **options: Any) -> TokensWithLogprobs:
        """The next reply."""
        name = self._name(base_tokenizer().decode(model_input.to_ints()))
        await asyncio.sleep(0.01 * (3 - "ABC".index(name[0])))
        return await super().__call__(model_input, stop, **options)


class Meets:
    """Sub-agents at the same time, each noting what it got and asking once more."""

    def __init__(self, *names: str) -> None:
        self.names = names

    async def __call__(self, client: Any) -> float:
        await asyncio.gather(*map(partial(self.sub, client), self.names))
        return 0.5

    async def sub(self, client: Any, name: str) -> None:
        messages: list[Any] = [{"role": "user", "content": f"I am {name}"}]
        for _ in range(2):
            completion = await client.chat.completions.create(messages=messages)
            client.reward(ord(name[0]) - 64)
            client.log(who=name)
            client.metric("replies", len(messages))
            messages.append(completion.choices[0].message)
            messages.append({"role": "user", "content": f"I am {name}!"})


async def recorded_together(path: Path, agent: Any) -> tuple[RolloutRecord, Trajectory]:
    recorder = Recorder(path / "rollouts.jsonl")
    env = recorder.watch(ChatAgentEnv(agent))
    played = await do_parallel_rollout(Slow(), env)
    recorder.add([played], [env])
    [record] = read_records(path)
    return record, played


async def test_calls_that_met_are_played_as_they_were_played(tmp_path: Path) -> None:
    record, played = await recorded_together(tmp_path, Meets("A", "B", "C"))
    again = await replay(record, Meets("A", "B", "C"))

    noted = [turn.logs["who"] for turn in played.transitions]
    assert noted[0] == "C"
    assert facts(again) == facts(played)
    for name in ("who", "lineage"):
        assert [t.logs[name] for t in again.transitions] == [
            t.logs[name] for t in played.transitions
        ]


async def test_a_call_that_met_others_and_is_not_made_is_named(tmp_path: Path) -> None:
    record, _ = await recorded_together(tmp_path, Meets("A", "C"))

    with pytest.raises(
        ReplayError,
        match=r"turn 0: it does not make that call, with 'I am C' within agent_timeout=0\.2 s",
    ):
        await replay(record, Meets("A"), agent_timeout=0.2)
    with pytest.raises(ReplayError, match="is now 'I am Bob'"):
        await replay(record, Meets("A", "Bob"), agent_timeout=0.2)


async def test_what_an_agent_draws_is_drawn_again(tmp_path: Path) -> None:
    async def draws(client: Any) -> float:
        number = client.rng.random()
        await client.chat.completions.create(messages=[{"role": "user", "content": f"{number}?"}])
        return float(number)

    record, played = await recorded(tmp_path, draws, ["yes"])

    assert facts(await replay(record, draws)) == facts(played)
    branch = await do_single_rollout(ScriptedPolicy(["no"]), BranchEnv(record, 0, draws))
    assert branch.transitions[0].reward == played.transitions[0].reward


async def test_many_rollouts_give_identical_transitions(tmp_path: Path) -> None:
    recorder, played = Recorder(tmp_path / "rollouts.jsonl"), list[Trajectory]()
    for number in range(50):
        env = recorder.watch(ChatAgentEnv(chat, {"a": number}))
        played.append(await do_single_rollout(ScriptedPolicy([f"r{number}", "b", "c"]), env))
        recorder.add(played[-1:], [env])
    again = [facts(await replay(record, chat)) for record in read_records(tmp_path)]

    assert again == [*map(facts, played)]


# -- differences ---------------------------------------------------------------------------------


async def test_the_message_that_differs_is_named(tmp_path: Path) -> None:
    record = await record_of(tmp_path, Says(), "one", "two")

    with pytest.raises(
        ReplayError,
        match=r"differs from its record at turn 1 \(of 2\): messages\[2\]\.content of the user was "
        r"'again\?' and is now 'again!'\.",
    ):
        await replay(record, Says("again!"))


async def test_a_policy_without_its_env_names_the_turn(tmp_path: Path) -> None:
    record = await record_of(tmp_path, Says(), "one", "two")
    env = ChatAgentEnv(Says("again!"))

    with pytest.raises(ReplayError, match=r"turn 1 \(of 2\): Its prompt has \d+ tokens and then"):
        await do_single_rollout(ReplayPolicy(record), env)
    await env.close()


async def test_an_agent_that_calls_more_or_fewer_times_differs(tmp_path: Path) -> None:
    record = await record_of(tmp_path, Says(), "one", "two")

    with pytest.raises(ReplayError, match=r"at turn 2: it calls .* after 2 calls, with 'third\?'"):
        await replay(record, Says(calls=3))
    with pytest.raises(ReplayError, match=r"at turn 1: it ended, where .*, with 'again\?'"):
        await replay(record, Says(calls=1))


async def test_messages_that_are_new_or_missing_are_told(tmp_path: Path) -> None:
    async def asks(client: Any, extra: list[str]) -> float:
        messages = [{"role": "user", "content": text} for text in ["one?", *extra]]
        await client.chat.completions.create(messages=messages)
        return 1.0

    record, _ = await recorded(tmp_path, asks, ["yes"], ["two?"])

    with pytest.raises(ReplayError, match=r"messages\[1\] is missing"):
        await replay(record, asks, [])
    with pytest.raises(ReplayError, match=r"messages\[2\] is new: .*three\?"):
        await replay(record, asks, ["two?", "three?"])


async def test_other_tools_and_another_renderer_are_told(tmp_path: Path) -> None:
    async def without_tools(client: Any) -> float:
        await client.chat.completions.create(messages=[{"role": "user", "content": "1 + 1?"}])
        return 1.0

    record = await record_of(tmp_path, calls_a_tool, CALL, "2")
    with pytest.raises(ReplayError, match="turn 0 .*: tools was .* and is now"):
        await replay(record, without_tools)
    renderer = get_renderer("role_colon", base_tokenizer(), model_name="evert-tiny")
    plain = await record_of(tmp_path, Says(), "one", "two")
    with pytest.raises(ReplayError, match="Expected the renderer qwen3_instruct of evert-tiny"):
        await replay(plain, Says(), renderer=renderer)


# -- branches ------------------------------------------------------------------------------------


async def test_a_branch_begins_with_the_turn_it_goes_on_from(tmp_path: Path) -> None:
    record = await record_of(tmp_path, Says(calls=3), "one", "two", "three")
    env, policy = BranchEnv(record, 1, Says(calls=3)), ScriptedPolicy(["other", "end"])
    trajectory = await do_single_rollout(policy, env)

    first, last = trajectory.transitions
    assert first.ob.to_ints() == record.prompts[1]
    assert last.ob.to_ints()[: first.ob.length] == record.prompts[1]
    assert [turn.ac.tokens for turn in trajectory.transitions] == policy.actions
    assert last.reward == 1.0


async def test_what_was_earned_before_a_branch_is_no_reward_of_it(tmp_path: Path) -> None:
    async def pays(client: Any) -> None:
        for _ in range(2):
            await client.chat.completions.create(messages=[{"role": "user", "content": "?"}])
            client.reward(0.5)

    env = BranchEnv(await record_of(tmp_path, pays, "a", "b"), -1, pays)
    trajectory = await do_single_rollout(ScriptedPolicy(["c"]), env)

    assert env.earned == 0.5
    assert [turn.reward for turn in trajectory.transitions] == [0.5]


async def test_a_branch_of_calls_made_side_by_side_samples_its_own_alone(tmp_path: Path) -> None:
    async def gathers_twice(client: Any) -> None:
        async def ask(text: str) -> None:
            await client.chat.completions.create(messages=[{"role": "user", "content": text}])
            client.reward(0.5)

        for round_ in ("one", "two"):
            await asyncio.gather(ask(f"{round_} a"), ask(f"{round_} b"))

    env = BranchEnv(await record_of(tmp_path, gathers_twice, *"wxyz"), 2, gathers_twice)
    policy = ScriptedPolicy(lambda prompt: "said")
    trajectory = await do_parallel_rollout(policy, env)

    assert len(policy.prompts) == 2
    assert all("two" in prompt for prompt in policy.prompts)
    assert env.earned == 1.0
    assert [turn.reward for turn in trajectory.transitions] == [0.5, 0.5]


async def test_an_agent_that_differs_before_the_turn_is_refused(tmp_path: Path) -> None:
    record = await record_of(tmp_path, Says(), "one", "two")

    for agent, message in ((Says("no?"), r"messages\[2\]"), (Says(calls=1), "its episode ended")):
        env = BranchEnv(record, 1, agent)
        with pytest.raises(ReplayError, match=message):
            await env.initial_observation()
        await env.close()
    with pytest.raises(InvalidDatasetError, match="no turn 2 in a record of 2 turns"):
        BranchEnv(record, 2, Says())


async def test_a_batch_of_branches_trains_each_sampled_token_once(tmp_path: Path) -> None:
    for replies in (["one", "two", "three"], ["four", "five", "six"]):
        await recorded(tmp_path, Says(calls=3), replies)
    records = [*read_records(tmp_path)]
    recorder = Recorder(tmp_path / "branches.jsonl")
    dataset = BranchDataset(
        Says(calls=3), records, turn=lambda record: 1, batch_size=2, group_size=3, record=recorder
    )
    policy, sampled = Distinct(), Counter[float]()
    groups: list[TrajectoryGroup] = []
    for builder in dataset.get_batch(0):
        groups.append(await do_group_rollout(builder, policy))
    for group in groups:
        group.final_rewards_G = [0.0, 1.0, 2.0]  # else nothing would be learned
    data, _ = assemble_training_data(groups, compute_advantages(groups))
    for datum in data:
        mask = datum.loss_fn_inputs["mask"].to_numpy()
        sampled.update(datum.loss_fn_inputs["logprobs"].to_numpy()[mask > 0].tolist())

    assert len(dataset.get_batch(0)) == 2
    assert sampled == Counter(dict.fromkeys(policy.logprobs, 1))
    again = [*read_records(recorder.path)]
    assert [record.turns for record in again] == [2] * 6
    assert [m["content"] for m in again[0].messages(0)][:3] == ["first?", "one", "again?"]


class Distinct(ScriptedPolicy):
    """Says something else each time; no two of its tokens have the same log-probability."""

    def __init__(self) -> None:
        super().__init__(lambda prompt: f"say {len(self.actions)}")
        self.logprobs: list[float] = []

    async def __call__(self, *given: Any, **named: Any) -> TokensWithLogprobs:
        """The next reply."""
        action = await super().__call__(*given, **named)
        start = len(self.logprobs)
        action.maybe_logprobs = [-(start + i) / 64 - 1 for i in range(len(action.tokens))]
        self.logprobs += action.maybe_logprobs
        return action
