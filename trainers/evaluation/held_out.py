"""Held-out tasks: playing them, scoring them, and writing down how they went.

``evaluate`` plays every held-out task twice, greedily and at temperature 1, all at the same time,
so that the sampler has full batches. A score is the mean reward of an episode. The first few
greedy games are kept as samples: what the model was told, what it said, what it earned.
"""

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tinker
    from tinker_cookbook.rl.train import Config
    from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, TrajectoryGroup
    from tinker_cookbook.tokenizer_utils import Tokenizer

TEMPERATURES = {"greedy": 0.0, "temperature_1": 1.0}
"""The ways to play, by the names they are reported under."""


@dataclass(frozen=True)
class Score:
    """The rewards of some episodes."""

    mean: float
    low: float
    high: float
    episodes: int


@dataclass(frozen=True)
class Sample:
    """One greedy episode, for people to read."""

    task: str
    reward: float
    turns: list[dict[str, str]]
    """Each with ``told``, the new text of the prompt, and ``said``, the reply."""


@dataclass(frozen=True)
class Evaluation:
    """How some weights did on the held-out tasks."""

    scores: dict[str, Score]
    """By the names in ``TEMPERATURES``."""
    samples: list[Sample]
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)


def read_evaluation(record: dict[str, Any]) -> Evaluation:
    """The evaluation that ``as_json`` wrote."""
    return Evaluation(
        {name: Score(**score) for name, score in record["scores"].items()},
        [Sample(**sample) for sample in record["samples"]],
        record["seconds"],
    )


async def score_weights(
    config: "Config", dataset: "RLDataset | None", *, samples: int, **weights: Any
) -> Evaluation | None:
    """Evaluate some weights of the engine in use.

    Args:
        config: Of the run.
        dataset: Held-out tasks; None where the run has none.
        samples: How many episodes to write down.
        **weights: ``base_model`` or ``model_path``, as ``create_sampling_client_async`` takes them.

    Returns:
        How they did; None without held-out tasks.
    """
    if dataset is None:
        return None
    import tinker
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    service = tinker.ServiceClient(base_url=config.base_url)
    client = await service.create_sampling_client_async(**weights)
    tokenizer = get_tokenizer(config.model_name)
    return await evaluate(client, dataset, tokenizer, max_tokens=config.max_tokens, samples=samples)


async def evaluate(
    client: "tinker.SamplingClient",
    dataset: "RLDataset",
    tokenizer: "Tokenizer",
    *,
    max_tokens: int,
    samples: int,
) -> Evaluation:
    """Play every task of a dataset, greedily and at temperature 1.

    Args:
        client: The weights.
        dataset: Held-out tasks; a group of episodes of each at temperature 1, and one greedily.
        tokenizer: Of the weights, for the samples' text.
        max_tokens: Most tokens of one reply.
        samples: How many greedy episodes to write down.
    """
    from tinker_cookbook.completers import TinkerTokenCompleter
    from tinker_cookbook.rl.metric_util import dataset_to_env_group_builders

    from evert.bridge.group import ChatAgentGroupBuilder

    loop = asyncio.get_running_loop()
    began = loop.time()
    policies = [TinkerTokenCompleter(client, max_tokens, t) for t in TEMPERATURES.values()]
    # Each group is played once: its episodes belong to it.
    games = [dataset_to_env_group_builders(dataset) for _ in policies]
    for builder in games[0]:
        if isinstance(builder, ChatAgentGroupBuilder):
            builder.group_size = 1  # greedy episodes of a task are all the same
    played = await asyncio.gather(
        *(_play(builders, policy) for builders, policy in zip(games, policies, strict=True))
    )
    scores = {
        name: _score([reward for group in groups for reward in group.get_total_rewards()])
        for name, groups in zip(TEMPERATURES, played, strict=True)
    }
    shown = zip(games[0], played[0][:samples], strict=False)
    kept = [_sample(builder, group, tokenizer) for builder, group in shown]
    return Evaluation(scores, kept, loop.time() - began)


async def _play(builders: Sequence["EnvGroupBuilder"], policy: Any) -> list["TrajectoryGroup"]:
    """One group of episodes each, all at the same time."""
    from tinker_cookbook.rl.rollouts import do_group_rollout

    return await asyncio.gather(*(do_group_rollout(builder, policy) for builder in builders))


def _score(rewards: Sequence[float]) -> Score:
    return Score(statistics.fmean(rewards), min(rewards), max(rewards), len(rewards))


def _sample(builder: "EnvGroupBuilder", group: "TrajectoryGroup", tokenizer: "Tokenizer") -> Sample:
    turns, known = [], list[int]()
    for transition in group.trajectories_G[0].transitions:
        prompt = _text_tokens(transition.ob)
        new = prompt[len(known) :] if prompt[: len(known)] == known else prompt
        said = list(transition.ac.tokens)
        turns.append({"told": _decode(tokenizer, new), "said": _decode(tokenizer, said)})
        known = prompt + said
    reward = group.get_total_rewards()[0]
    return Sample(str(getattr(builder, "task", "")), reward, turns)


def _text_tokens(prompt: "tinker.ModelInput") -> list[int]:
    return [token for chunk in prompt.chunks for token in getattr(chunk, "tokens", ())]


def _decode(tokenizer: "Tokenizer", tokens: Sequence[int]) -> str:
    return str(tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()


def samples_markdown(name: str, before: Sequence[Sample], after: Sequence[Sample]) -> str:
    """The same held-out tasks before and after training, as Markdown."""
    parts = [
        f"# {name}: held-out samples\n",
        "Greedy episodes of the first held-out tasks, by the weights before and after training.\n",
    ]
    for old, new in zip(before, after, strict=False):
        parts.append(f"## Task {old.task}\n")
        parts += [_episode_markdown("Before", old), _episode_markdown("After", new)]
    return "\n".join(parts)


def _episode_markdown(title: str, sample: Sample) -> str:
    lines = [f"### {title}: reward {sample.reward:g}\n", "```text"]
    for turn in sample.turns:
        # A fence inside the text would end ours.
        lines += [f"{turn['told']}\n>>> {turn['said']}".replace("```", "'''")]
    return "\n".join([*lines, "```\n"])


def sample_records(before: Sequence[Sample], after: Sequence[Sample]) -> list[dict[str, Any]]:
    """The same as ``samples_markdown``, as records: one a task."""
    return [
        {"task": old.task, "before": asdict(old), "after": asdict(new)}
        for old, new in zip(before, after, strict=False)
    ]
