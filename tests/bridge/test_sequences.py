"""A trajectory as token sequences: the Cookbook's data, in lists, for every other trainer.

They hold what ``trajectory_to_data`` makes of the trajectory, a lineage a sequence, also where the
turns of several alternate. What is no list of token ids is refused.
"""

import itertools
from typing import Any

import pytest
import tinker
from tests.kit import ask, assistant, tool, user
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory, Transition

from evert.bridge.clients.client import AgentClient
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.scripted import ScriptedPolicy
from evert.bridge.errors import UnsupportedPromptError
from evert.bridge.groups.group import sort_by_lineage
from evert.bridge.records.sequences import TokenSequence, sequences


class Numbered(TokenCompleter):
    """A scripted policy whose log-probabilities are all different."""

    def __init__(self, *texts: str) -> None:
        rest = iter(texts)
        self._inner = ScriptedPolicy(lambda prompt: next(rest))
        self._numbers = itertools.count(1)

    async def __call__(self, *args: Any, **options: Any) -> TokensWithLogprobs:
        said = await self._inner(*args, **options)
        logprobs = [-next(self._numbers) / 8 for _ in said.tokens]
        return TokensWithLogprobs(said.tokens, logprobs, said.stop_reason)


async def three_turns(client: AgentClient) -> float:
    messages = [user("Hi")]
    for number in range(3):
        messages += [assistant(await ask(client, *messages)), user(f"And {number}?")]
        client.reward(number)
    return 0.5


async def two_by_turns(client: AgentClient) -> float:
    """Two conversations whose turns alternate."""
    talks = [[user("I am A")], [user("I am B")]]
    for _ in range(2):
        for messages in talks:
            messages += [assistant(await ask(client, *messages)), user("Go on")]
    return 1.0


async def branching(client: AgentClient) -> float:
    """One beginning, two ends."""
    first = await ask(client)
    for text in ("Left", "Right"):
        await ask(client, "Hi", assistant(first), text)
    return 1.0


def shifted(sequence: TokenSequence) -> dict[str, Any]:
    """A sequence as a datum of the Cookbook has it: each position with its next token."""
    before = [0.0] * (len(sequence.prompt_ids) - 1)
    return {
        "tokens": [*sequence.prompt_ids, *sequence.response_ids][:-1],
        "target_tokens": [*sequence.prompt_ids, *sequence.response_ids][1:],
        "mask": [*before, *sequence.response_mask],
        "logprobs": [*before, *sequence.response_logprobs],
    }


def of_datum(datum: tinker.Datum) -> dict[str, Any]:
    fields = ("target_tokens", "mask", "logprobs")
    values = {name: datum.loss_fn_inputs[name].to_numpy().tolist() for name in fields}
    return {"tokens": datum.model_input.to_ints(), **values}


@pytest.mark.parametrize(
    ("agent", "texts", "count"),
    [
        (three_turns, "one two three", 1),
        (two_by_turns, "one two three four", 2),
        (branching, "one two three", 2),
    ],
)
async def test_they_are_the_cookbooks_data_id_by_id(agent: Any, texts: str, count: int) -> None:
    env = ChatAgentEnv(agent)
    trajectory = await do_single_rollout(Numbered(*texts.split()), env)
    alternating = sequences(trajectory)  # without the order of the group
    sort_by_lineage(trajectory, env.turn_lineages)

    found = sequences(trajectory)

    assert len(found) == count
    assert found == alternating
    data = trajectory_to_data(trajectory, 1.0)
    assert [shifted(each) for each in found] == [of_datum(datum) for datum in data]


async def test_each_turn_has_its_reward_and_its_end() -> None:
    trajectory = await do_single_rollout(Numbered("one", "two", "three"), ChatAgentEnv(three_turns))

    (found,) = sequences(trajectory)

    assert found.rewards == [0.0, 1.0, 2.5]
    for turn, end in zip(trajectory.transitions, found.turn_ends, strict=True):
        said = turn.ac.tokens
        assert found.response_ids[end - len(said) : end] == said
        assert found.response_mask[end - len(said) : end] == [1] * len(said)
    assert found.turn_ends[-1] == len(found.response_ids)
    assert sequences(Trajectory([], tinker.ModelInput.empty())) == []


async def test_masked_replies_have_mask_0() -> None:
    async def agent(client: AgentClient) -> float:
        for _ in range(2):
            await ask(client, tools=[tool("f")])
        return 1.0

    masking = ParseErrorPolicy(max_consecutive=1, mask_error_turns=True)
    policy = Numbered("<tool_call>\n{", "Fine.", "Fine.")
    env = ChatAgentEnv(agent, parse_error_policy=masking)
    trajectory = await do_single_rollout(policy, env)
    sort_by_lineage(trajectory, env.turn_lineages)
    data = trajectory_to_data(trajectory, 1.0)

    found = sequences(trajectory)

    assert [shifted(each) for each in found] == [of_datum(datum) for datum in data]
    masked = found[0].turn_ends[0]
    assert set(found[0].response_mask[:masked]) == {0}
    assert set(found[0].response_mask[masked:]) == {0, 1}


def test_images_are_refused_by_name() -> None:
    image = tinker.types.ImageChunk(data=b"png", format="png", expected_tokens=3)
    prompt = tinker.ModelInput(chunks=[tinker.EncodedTextChunk(tokens=[1]), image])
    turn = Transition(prompt, TokensWithLogprobs([5], [-1.0]), 1.0, True)
    trajectory = Trajectory([turn], tinker.ModelInput.empty())

    with pytest.raises(UnsupportedPromptError, match="ImageChunk"):
        sequences(trajectory)
