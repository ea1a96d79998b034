"""An agent with images, from its messages to its training.

1. ``evert train`` and ``evert evaluate`` show a model that sees what the agent sends.
2. Gymnasium has the images among the messages, and says that they are no tokens.
"""

import pickle
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import tinker
from examples.colours import COLOURS, agent, demonstrations, square
from rich.console import Console

import evert
from evert.bases.making.seeing import SeeingConfig, main
from evert.bridge.groups.dataset import AgentDatasetBuilder
from evert.bridge.tokens.bases import model_renderer
from evert.envs.as_gymnasium.env import AgentGymEnv

RENDERER = "qwen3_vl_instruct"


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("seeing"))
    main(SeeingConfig(out=folder))
    return folder


# -- 1. training ---------------------------------------------------------------------------------


async def test_a_dataset_builds_its_renderer_with_the_models_image_processor(seeing: str) -> None:
    builder = AgentDatasetBuilder(
        agent=agent, train_tasks=range(2), batch_size=2, model_name=seeing, renderer_name=RENDERER
    )
    dataset, _ = await builder()
    [group, _] = pickle.loads(pickle.dumps(dataset.get_batch(0)))  # as a worker gets them
    [env, *_] = await group.make_envs()
    found: Any = await env.initial_observation()
    await group.cleanup()

    [image] = [c for c in found[0].chunks if isinstance(c, tinker.types.ImageChunk)]
    assert image.expected_tokens == 4


def test_an_agent_with_images_is_warmed_up_trained_and_evaluated(
    seeing: str, tmp_path: Path
) -> None:
    run = evert.train(
        agent, range(4), test_tasks=range(2), log_path=str(tmp_path / "run"), device="cpu",
        model_name=seeing, renderer_name=RENDERER, demonstrations=demonstrations, warm_up_steps=2,
        warm_up_batch=4, steps=2, batch_size=2, group_size=2, max_tokens=3, samples=1,
        console=Console(quiet=True),
    )  # fmt: skip

    assert [row["step"] for row in run.steps()] == [0, 1]
    assert all(row["optim/kl_sample_train_v2"] < 1e-6 for row in run.steps())
    assert run.after is not None


def test_the_squares_are_of_every_colour_and_follow_from_their_tasks() -> None:
    assert {square(task)[0] for task in range(40)} == set(COLOURS)
    assert square(7) == square(7)


# -- 2. Gymnasium --------------------------------------------------------------------------------


def environment(seeing: str, **options: Any) -> gymnasium.Env[Any, Any]:
    return AgentGymEnv(agent, range(4), renderer=model_renderer(seeing, RENDERER), **options)


def test_gymnasium_has_images_among_the_messages(seeing: str) -> None:
    env = environment(seeing, render_mode="ansi")
    observation, info = env.reset(seed=1)
    colour, url = square(info["task"])

    assert observation[0]["content"] == "[image_url]What colour is the square?"
    assert env.observation_space.contains(observation)
    assert info["messages"][0]["content"][0]["image_url"]["url"] == url
    assert "tokens" not in info
    assert "[image_url]What colour" in str(env.render())
    observation, reward, terminated, _, info = env.step(colour)
    assert (reward, terminated) == (1.0, True)
    assert observation[-1] == {"role": "assistant", "content": colour}
    env.close()


def test_gymnasium_says_that_images_are_no_tokens(seeing: str) -> None:
    env = environment(seeing, level="tokens")
    with pytest.raises(evert.RendererMismatchError, match="holds images, which are no token ids"):
        env.reset()
    env.close()
