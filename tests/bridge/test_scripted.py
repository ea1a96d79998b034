"""``ScriptedPolicy`` plays texts as a model would: in tokens, with an end, within its budget."""

import pickle
from typing import Any

import pytest
import tinker
from tinker_cookbook.completers import TokenCompleter
from tinker_cookbook.renderers import Renderer
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert.bridge.clients.client import AgentClient
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.scripted import ScriptedPolicy
from evert.bridge.errors import RendererMismatchError
from evert.bridge.tokens.bases import default_renderer
from evert.bridge.tokens.renderer import prompt_renderer

OUR = prompt_renderer(None)
END = OUR.end_tokens[:1]


def prompt(text: str) -> tinker.ModelInput:
    return tinker.ModelInput.from_ints(OUR.encode(text))


async def two_calls(client: AgentClient) -> float:
    messages: list[Any] = [{"role": "user", "content": "One?"}]
    first = await client.chat.completions.create(messages=messages)
    messages += [first.choices[0].message, {"role": "user", "content": "Two?"}]
    second = await client.chat.completions.create(messages=messages)
    return float(second.choices[0].message.content == "Two.")


async def test_it_says_its_texts_in_order_each_with_an_end() -> None:
    policy = ScriptedPolicy(["One.", "Two."])
    first = await policy(prompt("a"), [])
    second = await policy(prompt("b"), [])

    assert isinstance(policy, TokenCompleter)
    assert first.tokens == OUR.encode("One.") + END
    assert second.tokens == OUR.encode("Two.") + END
    assert (first.stop_reason, second.stop_reason) == ("stop", "stop")


async def test_it_keeps_prompts_and_actions() -> None:
    policy = ScriptedPolicy(["One.", "Two."])
    await policy(prompt("a <|im_start|>"), [])
    await policy(prompt("b"), [])

    assert policy.prompts == ["a <|im_start|>", "b"]
    assert policy.actions == [OUR.encode("One.") + END, OUR.encode("Two.") + END]


async def test_images_in_a_prompt_are_passed_over() -> None:
    image = tinker.types.ImageAssetPointerChunk(
        format="png", location="https://example.invalid/1.png", expected_tokens=9
    )
    chunks = [*prompt("a").chunks, image, *prompt("b").chunks]
    policy = ScriptedPolicy(["One."])
    await policy(tinker.ModelInput(chunks=chunks), [])

    assert policy.prompts == ["ab"]


@pytest.mark.parametrize("logprob", [-1.0, -0.25])
async def test_every_token_has_the_logprob_that_was_given(logprob: float) -> None:
    said = await ScriptedPolicy(["One."], logprob=logprob)(prompt("a"), [])

    assert said.logprobs == [logprob] * len(said.tokens)
    assert set((await ScriptedPolicy(["One."])(prompt("a"), [])).logprobs) == {-1.0}


async def test_a_text_over_the_token_cap_is_cut_and_says_so() -> None:
    whole = OUR.encode("A longer text.") + END
    for cap in range(1, len(whole)):
        said = await ScriptedPolicy(["A longer text."])(prompt("a"), [], max_tokens=cap)
        assert said.tokens == whole[:cap]
        assert said.stop_reason == "length"
        assert len(said.logprobs) == cap
    said = await ScriptedPolicy(["A longer text."])(prompt("a"), [], max_tokens=len(whole))
    assert (said.tokens, said.stop_reason) == (whole, "stop")


async def test_an_empty_text_is_an_end_alone() -> None:
    assert (await ScriptedPolicy([""])(prompt("a"), [])).tokens == END


async def test_a_script_that_is_too_short_says_which_call_it_was() -> None:
    policy = ScriptedPolicy(["One."])
    await policy(prompt("a"), [])

    with pytest.raises(IndexError) as caught:
        await policy(prompt("b"), [])
    assert str(caught.value) == (
        "The script has 1 replies, and the agent made call 2. Give more replies, or a function "
        "from the prompt to the reply."
    )


async def test_a_function_answers_any_number_of_prompts() -> None:
    policy = ScriptedPolicy(lambda text: text.upper())
    for text in ("a", "b", "a"):
        said = await policy(prompt(text), [])
        assert OUR.decode(said.tokens[:-1]) == text.upper()


async def test_an_iterator_is_played_once() -> None:
    policy = ScriptedPolicy(text for text in ("One.", "Two."))

    assert (await policy(prompt("a"), [])).tokens == OUR.encode("One.") + END
    assert (await policy(prompt("a"), [])).tokens == OUR.encode("Two.") + END


async def test_the_cookbooks_runner_plays_it() -> None:
    policy = ScriptedPolicy(["One.", "Two."])
    trajectory = await do_single_rollout(policy, ChatAgentEnv(two_calls))

    assert [turn.ac.tokens for turn in trajectory.transitions] == policy.actions
    assert trajectory.transitions[-1].reward == 1.0
    assert policy.prompts[0].endswith("One?<|im_end|>\n<|im_start|>assistant\n")


async def test_a_runners_cap_cuts_it() -> None:
    policy = ScriptedPolicy(lambda _: "A longer text.")
    env = ChatAgentEnv(two_calls, limits=RolloutLimits(max_turn_tokens=3))
    trajectory = await do_single_rollout(policy, env)

    assert [len(turn.ac.tokens) for turn in trajectory.transitions] == [3, 3]


async def test_it_ends_as_the_renderer_of_its_env_ends(family: Renderer) -> None:
    ends = prompt_renderer(family).end_tokens[:1]
    said = await ScriptedPolicy(["One."], family)(prompt("a"), [])

    assert said.tokens == prompt_renderer(family).encode("One.") + ends
    assert said.stop_reason == "stop"


def test_it_wants_a_renderer_of_the_cookbook() -> None:
    with pytest.raises(RendererMismatchError, match="Expected a tinker_cookbook renderer"):
        ScriptedPolicy(["One."], "qwen3")  # type: ignore[arg-type]


def test_the_default_renderer_is_the_envs() -> None:
    assert ChatAgentEnv(two_calls).renderer is default_renderer()
    assert pickle.loads(pickle.dumps(default_renderer())).get_stop_sequences() == OUR.stop
