"""Settings of a training run, and their form in ``run.json``.

A recipe, part of a game (``evert.envs.games``), has defaults that settings override.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import chz

from evert.bridge.records.row_files import names_file
from evert.bridge.redaction import redacted_tree
from evert.bridge.tokens.bases import BASE_MODEL, TEMPLATE, renderer_name_of, with_variables
from evert.envs.games import games
from evert.trainers.config.arguments import gather, read_settings
from evert.trainers.config.early_checks import PATHS
from evert.trainers.config.episode import EpisodeSettings
from evert.trainers.config.fields import (
    Dtype,
    RecipeError,
    by_path,
    device,
    parallel,
    setting,
    share,
    size,
    trust,
)
from evert.trainers.config.recipes import choose_recipe, game_name, path_of, taskset_of
from evert.trainers.engine.training.losses import LossFn


def _path_field(doc: str) -> Any:
    return chz.field(default="", doc=doc, blueprint_cast=str)


@chz.chz
class SharedSettings(EpisodeSettings):
    """Settings that a training run and an evaluation share."""

    env: str = chz.field(
        default="",
        munger=lambda _, name: game_name(name),
        doc=f"game: {', '.join(games())}; or pass agent=",
    )
    tasks: Mapping[str, Any] = by_path(
        "a taskset instead of env=: tasks=reasoning_gym:chain_sum, tasks=gymnasium:Blackjack-v1; "
        "its arguments: tasks.max_terms=2"
    )
    renderer_name: str | None = setting(None, "the renderer; None: the one that fits the model")
    chat_template: Mapping[str, Any] = by_path(
        "values of variables that the model's chat template reads; "
        "`evert model check FOLDER` lists them"
    )
    trust_remote_code: bool = trust()
    device: str = device("embedded: cpu, cuda, cuda:1, ..., mps or auto")
    threads: int | None = size(None, "embedded: CPU threads per pass; None: 1 for a tiny model")
    dtype: Dtype = setting(
        "auto",
        "embedded: type of the weights; auto: as trained, or bfloat16 on CUDA with an adapter",
    )


@chz.chz
class TrainSettings(SharedSettings):
    """Settings of one training run and its episodes; a recipe's defaults override these."""

    # Import paths, or from Python the objects themselves.
    agent: Any = _path_field("your agent's import path, 'package.module:function'")
    train_tasks: Any = _path_field(
        "import path of a sequence of tasks to train on; or a file (.jsonl, .csv or .parquet) with "
        "a task in each row; or a folder of records: the openings of conversations are the tasks"
    )
    test_tasks: Any = _path_field("import path or file of the held-out tasks; '' for none")
    sampler: Any = _path_field(
        "import path of a sampler, which chooses each step's tasks: evert:Curriculum leaves out "
        "solved and hopeless tasks; '': all tasks in turn"
    )

    model_name: str = setting(
        BASE_MODEL, "a shipped base, a Hugging Face folder, or a model's name"
    )
    engine: Literal["auto", "embedded", "service"] = setting(
        "auto", "auto: the service if TINKER_API_KEY is set and the service may have the model"
    )
    base_url: str | None = setting(None, "address of your own Tinker service")
    full_parameter: bool | None = setting(
        None, "embedded: train all weights, not an adapter; None: for models below 50 M parameters"
    )
    lora_rank: int = size(32, "rank of the adapter, if one is trained")
    allow_hosts: tuple[str, ...] = setting(
        (), "embedded: hosts that may be reached, for example by an agent's tools"
    )

    rollouts: Literal["here", "pool", "ray"] = setting(
        "here",
        "where training episodes are played: in this process, in a pool of processes, or in Ray",
    )
    rollout_workers: int | None = size(None, "pool, ray: processes; None: one per core")
    groups_per_worker: int = size(16, "pool, ray: maximum groups that a process plays at a time")
    worker_timeout: float | None = size(
        60.0,
        "pool, ray: seconds in which a worker's event loop must answer; None: no limit",
        0,
        or_more=False,
    )
    ray_address: str | None = setting(
        None, "ray: address of a cluster; None: RAY_ADDRESS, or a new cluster on this machine"
    )

    warm_up_steps: int = size(0, "supervised steps before RL; 0: none", 0)
    demonstrations: Any = _path_field(
        "warm-up: import path of a function from a seed to conversations; or a file of them "
        "(as for OpenAI's fine-tuning, ShareGPT or TRL), a dataset's folder, or a folder of records"
    )
    warm_up_min_reward: float | None = setting(
        1.0, "warm-up on records: lowest total reward of a rollout; None: any"
    )
    warm_up_batch: int = size(64, "warm-up: conversations per step")
    warm_up_learning_rate: float = size(
        1e-3, "warm-up: Adam's learning rate, which falls to 0", 0, or_more=False
    )

    steps: int = size(20, "training steps, one batch each")
    batch_size: int = size(32, "groups (tasks) per step")
    group_size: int = size(8, "episodes per group")
    test_group_size: int = size(1, "episodes per held-out task, at temperature 1")
    learning_rate: float = size(1e-4, "Adam's learning rate", 0, or_more=False)
    loss_fn: LossFn = setting("importance_sampling", f"one of {', '.join(get_args(LossFn))}")
    num_substeps: int = size(1, "optimizer steps per training step")
    kl_penalty: float = size(0.0, "weight of the KL divergence from the weights before RL", 0)
    max_tokens: int = size(512, "maximum tokens of a reply")
    failed_steps: int = size(
        3, "stop after this many steps in a row in which nearly all episodes fail; 0: never", 0
    )
    models: Mapping[str, Any] = by_path(
        "the frozen model that answers the agent's calls to KEY: a base, a folder, "
        "runs/NAME, runs/NAME@STEP, tinker://..., openai:MODEL or https://HOST/v1#MODEL; options: "
        "models.KEY.temperature=0, max_tokens, renderer_name, base_url, api_key_env, timeout",
    )
    league: float = share(0.0, "share of the groups in which a past checkpoint plays one seat")
    test_opponent: str = setting(
        "", "who plays the other seats of held-out tasks: an opponent, a model; '': the policy"
    )
    cookbook: Mapping[str, Any] = by_path(
        "any other field of the Cookbook's rl.train.Config; "
        "`evert train --help cookbook` lists them",
    )

    eval_every: int = size(5, "steps between held-out scores; 0: none during training", 0)
    save_every: int = size(
        5, "steps between kept checkpoints; embedded runs also save every step", 0
    )
    parallel: int | None = parallel()
    samples: int = size(4, "held-out tasks whose episodes are shown before and after training", 0)
    record: bool | float = share(
        0.1,
        "share of each step's groups (at least one) whose complete rollouts are written to "
        "RUN/rollouts, about 30 bytes per token; 1: all, 0: none",
    )
    seed: int = setting(0, "the same seed gives the same run (embedded engine on a CPU)")
    log_path: str | None = setting(
        None, "a new run folder, or one to resume; None: runs/<env>-<model>-<date-time>"
    )

    wandb_project: str | None = setting(None, "log to this Weights & Biases project")
    wandb_name: str | None = setting(None, "the run's name in W&B; None: its folder's name")
    tags: tuple[str, ...] = setting((), "W&B tags, in addition to the game and the model")
    tensorboard: bool = setting(False, "write event files into RUN/tensorboard")

    @chz.validate
    def _agent(self) -> None:
        if is_missing(self.agent) != is_missing(self.train_tasks):
            present, missing = "agent", "train_tasks"
            if is_missing(self.agent):
                present, missing = missing, present
            raise RecipeError(
                f"{missing}= is missing: got {present}={path_of(getattr(self, present))} alone. "
                "Pass both: agent=package.module:function train_tasks=package.module:TASKS."
            )
        if is_missing(self.agent):
            hint = f" log_path={self.log_path} holds no run to resume." if self.log_path else ""
            raise RecipeError(
                f"No agent to train.{hint} Pass env= with one of {', '.join(games())}, or an agent "
                "of your own: agent=package.module:function train_tasks=package.module:TASKS."
            )

    @chz.validate
    def _demonstrations(self) -> None:
        if self.warm_up_steps and is_missing(self.demonstrations):
            raise RecipeError(
                f"warm_up_steps={self.warm_up_steps} has nothing to warm up on. Pass "
                "demonstrations=package.module:function or a file, or leave warm_up_steps out."
            )
        path = self.demonstrations
        if not self.warm_up_steps and isinstance(path, str) and names_file(path):
            raise RecipeError(
                f"demonstrations={path} is set, but warm_up_steps=0 learns nothing from it. Pass "
                "warm_up_steps=8 or so, or leave demonstrations out."
            )

    @chz.validate
    def _seed(self) -> None:
        if abs(self.seed) >= 2**32:
            raise RecipeError(f"seed must be between -2**32 and 2**32, got {self.seed}.")

    @property
    def name(self) -> str:
        """Short name of what the run trains: the game, the taskset or the agent's function."""
        name = self.env or self.tasks.get("id")
        return name or path_of(self.agent).rpartition(":")[2]


MAPPINGS = {
    "tasks": "tasks.max_terms=2",
    "chat_template": "chat_template.enable_thinking=False",
    "limits": "limits.max_turns=20",
    "models": "models.judge=evert-tiny",
    "parse_error_policy": "parse_error_policy.max_consecutive=2",
    "cookbook": "cookbook.temperature=0.8",
}
"""Settings that are mappings, each with an example."""

WORKERS = frozenset(
    {"rollouts", "rollout_workers", "groups_per_worker", "worker_timeout", "ray_address"}
)
"""Settings that say where episodes are played."""

RESUMABLE = frozenset(
    {"wandb_project", "wandb_name", "tags", "tensorboard"}
    | {"log_path", "steps", "eval_every", "save_every", "samples", "engine", "base_url", "threads"}
    | {"failed_steps", "record", "parallel", "trust_remote_code"}
    | WORKERS
)
"""Settings that a resumed run may change, since what it has learned does not depend on them."""


def read_train_settings(settings: Mapping[str, Any], recorded: Mapping[str, Any]) -> TrainSettings:
    """Read the settings of a run, over the recorded or else the recipe's settings."""
    _, preset = choose_recipe(settings)
    under = recorded or preset
    gathered = gather({**settings, "tasks": taskset_of(settings)}, MAPPINGS, under)
    return read_settings(TrainSettings, gathered, under)


def as_record(settings: TrainSettings) -> dict[str, Any]:
    """Return the settings for ``run.json``, with functions and tasks by import path or name."""
    plain = {key: _plain(getattr(settings, key)) for key in chz.chz_fields(TrainSettings)}
    paths = {key: path_of(plain[key]) for key in PATHS}
    set_ = {key: {path: str(v) for path, v in plain[key].items()} for key in MAPPINGS}
    set_["models"] = {path: _model_text(model) for path, model in settings.models.items()}
    record: dict[str, Any] = redacted_tree({**plain, **paths, **set_})
    return record


def _model_text(value: Any) -> str:
    is_text = isinstance(value, str | int | float | None)
    return str(value) if is_text else f"<a {type(value).__name__}>"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def is_missing(value: Any) -> bool:
    """Return whether an agent or tasks are missing."""
    return value is None or (isinstance(value, str) and not value)


def differences(before: Mapping[str, Any], settings: TrainSettings) -> Sequence[str]:
    """Return the changes that a resumed run may not make, as lines ``key: recorded -> now``.

    For a setting that is newer than the run, and so not recorded, the default counts.
    """
    now, plain = as_record(settings), TrainSettings(agent="any:agent", train_tasks="any:tasks")
    recorded = as_record(plain) | {key: _plain(value) for key, value in before.items()}
    return [
        f"{key}: {recorded[key]!r} -> {now[key]!r}"
        for key in now
        if key not in RESUMABLE and recorded[key] != now[key]
    ]


def renderer_of(settings: TrainSettings) -> str:
    """Return the name of the renderer that a run uses.

    Raises:
        InvalidModelError: The settings name no renderer, and the model is unknown; or the renderer
            takes no values for a chat template.
    """
    if settings.chat_template:
        return with_variables(settings.renderer_name or TEMPLATE, settings.chat_template)
    return settings.renderer_name or renderer_name_of(settings.model_name)
