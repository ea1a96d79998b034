"""What a training run is: the settings of a run, over the recipe of its game.

In order: ``TrainSettings`` (every value of a run, one a command-line key), ``choose_recipe`` (which
preset the command line asks for), and ``cookbook_config`` (the settings as the Tinker Cookbook's
``rl.train.Config``).

A recipe stands with its game (``evert.envs.games``). It is a set of defaults and nothing more: it
is laid under the command line, so each value can be overridden there, and ``env=identity --help``
shows what the recipe chose.
"""

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import chz

from evert.bridge.base import BASE_MODEL, BASE_RENDERER, BASES
from evert.bridge.errors import EvertError
from evert.envs.games import find_game, games

if TYPE_CHECKING:
    from tinker_cookbook.rl.train import Config

    from evert.bridge.dataset import AgentDatasetBuilder
    from evert.bridge.options import EnvOptions


class RecipeError(EvertError, ValueError):
    """The settings do not describe a run: an unknown game, a value missing, or two at odds."""


@chz.chz
class TrainSettings:
    """One training run. Values that no recipe sets have the defaults given here."""

    env: str = chz.field(
        default="",
        munger=lambda _, name: game_name(name),
        doc=f"game: {', '.join(games())}; or give agent=",
    )
    agent: str = chz.field(default="", doc="your agent's import path, 'package.module:function'")
    train_tasks: str = chz.field(default="", doc="import path of a sequence of tasks to train on")
    test_tasks: str = chz.field(default="", doc="import path of the held-out tasks; '' for none")

    model_name: str = chz.field(
        default=BASE_MODEL, doc="a shipped base, a Hugging Face folder, or a model's name"
    )
    renderer_name: str | None = chz.field(default=None, doc="None: the one that fits the model")
    engine: Literal["auto", "embedded", "service"] = chz.field(
        default="auto", doc="auto: the service where TINKER_API_KEY is set and it has the model"
    )
    base_url: str | None = chz.field(default=None, doc="address of a service of your own")
    device: str = chz.field(default="auto", doc="embedded: cpu, cuda or auto")
    threads: int | None = chz.field(default=None, doc="embedded: CPU threads; None: 1 if tiny")
    full_parameter: bool | None = chz.field(
        default=None, doc="embedded: train all weights; None: below 50 M parameters"
    )
    lora_rank: int = chz.field(default=32, doc="rank of the adapter, where one is trained")
    allow_hosts: tuple[str, ...] = chz.field(
        default=(), doc="embedded: hosts that stay reachable, for example an agent's tools"
    )

    warm_up_steps: int = chz.field(default=0, doc="supervised steps before RL; 0: none")
    demonstrations: str = chz.field(
        default="", doc="warm-up: import path of a function from a seed to conversations"
    )
    warm_up_batch: int = chz.field(default=64, doc="warm-up: conversations a step")
    warm_up_learning_rate: float = chz.field(default=1e-3, doc="warm-up: Adam's, falls to 0")

    steps: int = chz.field(default=20, doc="training steps, one batch each")
    batch_size: int = chz.field(default=32, doc="groups (tasks) a step")
    group_size: int = chz.field(default=8, doc="episodes a group")
    test_group_size: int = chz.field(default=1, doc="episodes a held-out task, at temperature 1")
    learning_rate: float = chz.field(default=1e-4, doc="Adam's")
    loss_fn: Literal["importance_sampling", "ppo", "cispo", "dro"] = "importance_sampling"
    num_substeps: int = chz.field(default=1, doc="optimizer steps a training step")
    kl_penalty: float = chz.field(
        default=0.0, doc="weight of the divergence from the weights that RL starts from"
    )
    max_tokens: int = chz.field(default=512, doc="most tokens of one reply")
    agent_timeout: float = chz.field(default=600.0, doc="seconds an agent may take between calls")
    on_agent_error: float | None = chz.field(
        default=None, doc="reward of an episode whose agent raises; None: the run stops"
    )

    eval_every: int = chz.field(default=5, doc="steps between held-out scores; 0: none on the way")
    save_every: int = chz.field(
        default=5, doc="steps between kept checkpoints; embedded runs also save every step"
    )
    samples: int = chz.field(default=4, doc="held-out tasks written down before and after")
    seed: int = chz.field(default=0, doc="same seed, same run (embedded engine on a CPU)")
    log_path: str | None = chz.field(
        default=None, doc="run folder, new or to resume; None: runs/<env>-<model>-<date-time>"
    )

    wandb_project: str | None = chz.field(default=None, doc="log to this Weights & Biases project")
    wandb_name: str | None = chz.field(default=None, doc="the run's name there; None: its folder's")
    tags: tuple[str, ...] = chz.field(default=(), doc="tags there, beside the game and the model")
    tensorboard: bool = chz.field(default=False, doc="write event files into RUN/tensorboard")

    @chz.validate
    def _sizes(self) -> None:
        least = {"steps": 1, "batch_size": 1, "group_size": 1, "test_group_size": 1}
        least |= {"max_tokens": 1, "num_substeps": 1}
        least |= {"eval_every": 0, "save_every": 0, "samples": 0}
        least |= {"warm_up_steps": 0, "warm_up_batch": 1}
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise RecipeError(
                    f"{name} must be at least {minimum}, got {getattr(self, name)}. "
                    f"Pass {name}={max(minimum, 1)} or more."
                )

    @chz.validate
    def _agent(self) -> None:
        if not self.agent or not self.train_tasks:
            raise RecipeError(
                f"No agent to train. Pass env= with one of {', '.join(games())}, or an agent of "
                "your own: agent=package.module:function train_tasks=package.module:TASKS."
            )

    @chz.validate
    def _demonstrations(self) -> None:
        if self.warm_up_steps and not self.demonstrations:
            raise RecipeError(
                f"warm_up_steps={self.warm_up_steps} has nothing to warm up on. Pass "
                "demonstrations=package.module:function, or leave warm_up_steps out."
            )

    @property
    def name(self) -> str:
        """What the run trains, as a short name: the game, or the agent's function."""
        return self.env or self.agent.partition(":")[2]


RESUMABLE = frozenset(
    {"wandb_project", "wandb_name", "tags", "tensorboard"}
    | {"log_path", "steps", "eval_every", "save_every", "samples", "engine", "base_url", "threads"}
)
"""Settings that a resumed run may change: they leave what was learned so far as it is."""


def game_name(text: str) -> str:
    """A game's name as it is written: ``guess-number`` will do for one of evert's own."""
    name = text.replace("-", "_")
    return name.lower() if name.lower() in games() else name


def choose_recipe(given: Mapping[str, object]) -> tuple[str, Mapping[str, Any]]:
    """The preset a command line asks for: its name and its values.

    Args:
        given: The command line's keys and values; ``env``, ``agent`` and ``model_name`` are looked
            at.

    Raises:
        RecipeError: There is no such game, or both a game and an agent are named.
        GameError: A module was named that is no game.
    """
    env = str(given.get("env") or "")
    if not env:
        return "defaults", {}
    if given.get("agent"):
        raise RecipeError(
            f"Got both env={env} and agent={given['agent']}; expected one of them. Leave env= out "
            "to train your own agent."
        )
    game = find_game(env)
    if game is None:
        near = difflib.get_close_matches(game_name(env), games(), n=1, cutoff=0.4)
        hint = f" Did you mean env={near[0]}?" if near else ""
        raise RecipeError(
            f"There is no game {env!r}.{hint} Games: {', '.join(games())}, or a module of yours "
            "that has a GAME: env=my_package.my_game. To train an agent that is none: "
            "agent=package.module:function train_tasks=package.module:TASKS."
        )
    model = str(given.get("model_name") or "")
    name = game_name(env)
    settings = game.settings(full_size=bool(model) and model not in BASES)
    return f"recipe {name}", {**settings, "env": name}


def check_settings(settings: TrainSettings) -> None:
    """Find what would stop a run before there is a run: a path that leads nowhere, mostly.

    Raises:
        EvertError: The agent, the tasks, the renderer or a tracker cannot be found.
    """
    from evert.bridge.dataset import load_tasks
    from evert.bridge.group import load_agent
    from evert.trainers.runs.demonstrations import load_demonstrations
    from evert.trainers.runs.tracking import check_tracking

    check_tracking(settings)
    load_agent(settings.agent)
    load_tasks(settings.train_tasks)
    if settings.test_tasks:
        load_tasks(settings.test_tasks)
    if settings.warm_up_steps:
        load_demonstrations(settings.demonstrations)
    renderer_of(settings)


def renderer_of(settings: TrainSettings) -> str:
    """The Cookbook renderer a run uses.

    Raises:
        RecipeError: The model is none the Cookbook knows, and no renderer was named.
    """
    if settings.renderer_name:
        return settings.renderer_name
    if settings.model_name in BASES:
        return BASE_RENDERER
    from tinker_cookbook import model_info
    from tinker_cookbook.exceptions import ConfigurationError

    try:
        return model_info.get_recommended_renderer_name(settings.model_name)
    except (ConfigurationError, KeyError, ValueError) as error:
        raise RecipeError(
            f"The Cookbook names no renderer for the model {settings.model_name!r}. Pass the one "
            f"it was trained with, for example renderer_name={BASE_RENDERER}."
        ) from error


def dataset_builder(settings: TrainSettings) -> "AgentDatasetBuilder":
    """Tasks and agent as the Cookbook takes them, with as many epochs as the steps need.

    Raises:
        InvalidDatasetError: There are no tasks where ``train_tasks`` points.
    """
    from evert.bridge.dataset import AgentDatasetBuilder, load_tasks

    batches_per_epoch = math.ceil(len(load_tasks(settings.train_tasks)) / settings.batch_size)
    options: EnvOptions = {
        "agent_timeout": settings.agent_timeout,
        "on_agent_error": settings.on_agent_error,
    }
    return AgentDatasetBuilder(
        agent=settings.agent,
        train_tasks=settings.train_tasks,
        test_tasks=settings.test_tasks or None,
        batch_size=settings.batch_size,
        group_size=settings.group_size,
        test_group_size=settings.test_group_size,
        epochs=math.ceil(settings.steps / max(1, batches_per_epoch)),
        seed=settings.seed,
        model_name=settings.model_name,
        renderer_name=renderer_of(settings),
        env_options=options,
    )


def cookbook_config(
    settings: TrainSettings,
    folder: Path,
    *,
    embedded: bool,
    start: str | None = None,
    reference: str | None = None,
) -> "Config":
    """The settings as ``tinker_cookbook.rl.train.main`` takes them.

    Args:
        settings: Of the run.
        folder: The run folder.
        start: ``tinker://`` path of the weights to start from; None for the model's own.
        reference: The same weights' path to sample from, for the KL penalty.
        embedded: Checkpoints cost nothing but disk: one is saved every step, to resume from,
            and those of ``save_every`` never expire.
    """
    from tinker_cookbook.rl.train import Config, KLReferenceConfig

    kept = KLReferenceConfig(base_model=settings.model_name, load_checkpoint_path=reference)
    return Config(
        recipe_name=f"evert_{slug(settings.name)}",
        dataset_builder=dataset_builder(settings),
        model_name=settings.model_name,
        renderer_name=renderer_of(settings),
        base_url=settings.base_url,
        load_checkpoint_path=start,
        log_path=str(folder),
        learning_rate=settings.learning_rate,
        lora_rank=settings.lora_rank,
        loss_fn=settings.loss_fn,
        num_substeps=settings.num_substeps,
        kl_penalty_coef=settings.kl_penalty,
        kl_reference_config=kept if settings.kl_penalty else None,
        max_tokens=settings.max_tokens,
        max_steps=settings.steps,
        eval_every=settings.eval_every,
        save_every=settings.save_every,
        rolling_save_every=1 if embedded else 0,
        ttl_seconds=None if embedded else 7 * 24 * 3600,
        num_groups_to_log=1,
        wandb_project=settings.wandb_project,
        wandb_name=settings.wandb_name,
    )


def slug(text: str) -> str:
    """A text as part of a file name."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.") or "run"


def differing(recorded: Mapping[str, Any], settings: TrainSettings) -> Sequence[str]:
    """What a resumed run would change and may not, one line ``key: recorded -> now`` each."""
    now = chz.asdict(settings)
    return [
        f"{key}: {recorded.get(key)!r} -> {now[key]!r}"
        for key in now
        if key not in RESUMABLE and recorded.get(key) != now[key]
    ]
