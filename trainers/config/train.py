"""Settings of a training run, and how they are saved in ``run.json``.

Each game (``evert.envs.games``) has a recipe with default settings, which users can override.
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
    """Settings shared by training and evaluation."""

    env: str = chz.field(
        default="",
        munger=lambda _, name: game_name(name),
        doc=f"game to use: {', '.join(games())}; or pass agent=",
    )
    tasks: Mapping[str, Any] = by_path(
        "taskset to use instead of env=, like tasks=reasoning_gym:chain_sum or "
        "tasks=gymnasium:Blackjack-v1; pass its arguments as tasks.max_terms=2"
    )
    renderer_name: str | None = setting(
        None, "renderer name (default: the one that matches the model)"
    )
    chat_template: Mapping[str, Any] = by_path(
        "variables to pass to the model's chat template; `evert model check FOLDER` lists them"
    )
    trust_remote_code: bool = trust()
    device: str = device("cpu, cuda, cuda:1, ..., mps or auto (embedded engine)")
    threads: int | None = size(
        None, "CPU threads per pass (embedded engine; default: 1 for a tiny model)"
    )
    dtype: Dtype = setting(
        "auto",
        "weight dtype (embedded engine); auto uses the evaluated run's dtype if there is a run, "
        "otherwise bfloat16 for adapters on CUDA and float32 in all other cases",
    )


@chz.chz
class TrainSettings(SharedSettings):
    """Settings of a training run and its episodes. A recipe can change the defaults."""

    # import paths, or the objects themselves when passed from Python
    agent: Any = _path_field("import path of your agent, 'package.module:function'")
    train_tasks: Any = _path_field(
        "tasks to train on: the import path of a sequence, a file (.jsonl, .csv or .parquet) with "
        "one task per row, or a folder of records (the start of each conversation becomes a task)"
    )
    test_tasks: Any = _path_field("import path or file of the held-out tasks; '' for none")
    sampler: Any = _path_field(
        "import path of a sampler that chooses the tasks of each step; evert:Curriculum skips "
        "solved and hopeless tasks (default: cycle through all tasks)"
    )

    model_name: str = setting(BASE_MODEL, "bundled base model, Hugging Face folder, or model name")
    engine: Literal["auto", "embedded", "service"] = setting(
        "auto",
        "auto uses the service if TINKER_API_KEY is set and the service may offer the model",
    )
    base_url: str | None = setting(None, "address of your own Tinker service")
    full_parameter: bool | None = setting(
        None,
        "train all weights instead of an adapter (embedded engine; default: for models below 50M "
        "parameters)",
    )
    lora_rank: int = size(32, "LoRA rank, if an adapter is trained")
    allow_hosts: tuple[str, ...] = setting(
        (), "hosts to allow connections to, for example for the agent's tools (embedded engine)"
    )

    rollouts: Literal["here", "pool", "ray"] = setting(
        "here",
        "where to play training episodes: in this process, in a pool of processes, or on Ray",
    )
    rollout_workers: int | None = size(
        None, "number of worker processes (pool, ray; default: one per core)"
    )
    groups_per_worker: int = size(16, "maximum concurrent groups per worker (pool, ray)")
    worker_timeout: float | None = size(
        60.0,
        "seconds to wait for a response from a worker's event loop; None: no limit (pool, ray)",
        0,
        or_more=False,
    )
    ray_address: str | None = setting(
        None, "address of the Ray cluster (default: RAY_ADDRESS, or a new local cluster)"
    )

    warm_up_steps: int = size(0, "supervised training steps before RL; 0 disables the warm-up", 0)
    demonstrations: Any = _path_field(
        "conversations for the warm-up: the import path of a function that takes a seed and "
        "returns conversations, a file (in OpenAI fine-tuning, ShareGPT or TRL format), a dataset "
        "folder, or a folder of records"
    )
    warm_up_min_reward: float | None = setting(
        1.0, "minimum total reward for a recorded rollout to be used in the warm-up; None uses all"
    )
    warm_up_batch: int = size(64, "conversations per warm-up step")
    warm_up_learning_rate: float = size(
        1e-3, "Adam learning rate of the warm-up, which decays to 0", 0, or_more=False
    )

    steps: int = size(20, "number of training steps, one batch each")
    batch_size: int = size(32, "groups (tasks) per step")
    group_size: int = size(8, "episodes per group")
    test_group_size: int = size(1, "episodes per held-out task, at temperature 1")
    learning_rate: float = size(1e-4, "Adam learning rate", 0, or_more=False)
    loss_fn: LossFn = setting("importance_sampling", f"one of {', '.join(get_args(LossFn))}")
    num_substeps: int = size(1, "optimizer steps per training step")
    kl_penalty: float = size(0.0, "coefficient of the KL penalty against the weights before RL", 0)
    max_tokens: int = size(512, "maximum tokens per reply")
    failed_steps: int = size(
        3, "stop after this many consecutive steps where nearly all episodes fail; 0 disables it", 0
    )
    models: Mapping[str, Any] = by_path(
        "frozen model that answers the agent's calls to KEY: a base model, a folder, "
        "runs/NAME, runs/NAME@STEP, tinker://..., openai:MODEL or https://HOST/v1#MODEL; options: "
        "models.KEY.temperature=0, max_tokens, renderer_name, base_url, api_key_env, timeout",
    )
    league: float = share(0.0, "fraction of groups in which a past checkpoint plays one seat")
    test_opponent: str = setting(
        "", "opponent or model that plays the other seats on held-out tasks (default: the policy)"
    )
    cookbook: Mapping[str, Any] = by_path(
        "any other field of the Cookbook's rl.train.Config; "
        "`evert train --help cookbook` lists them",
    )

    eval_every: int = size(5, "evaluate on held-out tasks every N steps; 0: not during training", 0)
    save_every: int = size(
        5, "keep a checkpoint every N steps (embedded runs also save after every step)", 0
    )
    parallel: int | None = parallel()
    samples: int = size(
        4, "number of held-out tasks whose episodes are shown, before and after training", 0
    )
    record: bool | float = share(
        0.1,
        "fraction of each step's groups (at least one group) to record in full in RUN/rollouts, "
        "at about 30 bytes per token; 1 records all, 0 none",
    )
    seed: int = setting(0, "the same seed reproduces the run (embedded engine on a CPU)")
    log_path: str | None = setting(
        None, "new run folder, or one to resume (default: runs/<env>-<model>-<date-time>)"
    )

    wandb_project: str | None = setting(None, "Weights & Biases project to log to")
    wandb_name: str | None = setting(None, "W&B run name (default: the name of the run folder)")
    tags: tuple[str, ...] = setting((), "W&B tags, in addition to the game and the model")
    tensorboard: bool = setting(False, "write TensorBoard event files to RUN/tensorboard")

    @chz.validate
    def _agent(self) -> None:
        if is_missing(self.agent) != is_missing(self.train_tasks):
            present, missing = "agent", "train_tasks"
            if is_missing(self.agent):
                present, missing = missing, present
            raise RecipeError(
                f"{missing}= is missing: only got {present}={path_of(getattr(self, present))}. "
                "Pass both: agent=package.module:function train_tasks=package.module:TASKS."
            )
        if is_missing(self.agent):
            hint = f" log_path={self.log_path} has no run to resume." if self.log_path else ""
            raise RecipeError(
                f"No agent to train.{hint} Pass env= with one of {', '.join(games())}, or your own "
                "agent: agent=package.module:function train_tasks=package.module:TASKS."
            )

    @chz.validate
    def _demonstrations(self) -> None:
        if self.warm_up_steps and is_missing(self.demonstrations):
            raise RecipeError(
                f"warm_up_steps={self.warm_up_steps} is set, but there are no demonstrations. Pass "
                "demonstrations=package.module:function or a file, or leave out warm_up_steps."
            )
        path = self.demonstrations
        if not self.warm_up_steps and isinstance(path, str) and names_file(path):
            raise RecipeError(
                f"demonstrations={path} is set, but not used because warm_up_steps=0. Set "
                "warm_up_steps, for example to 8, or leave out demonstrations."
            )

    @chz.validate
    def _seed(self) -> None:
        if abs(self.seed) >= 2**32:
            raise RecipeError(f"seed must be between -2**32 and 2**32, got {self.seed}.")

    @property
    def name(self) -> str:
        """Short name of the game, the taskset or the agent's function."""
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
"""An example for each mapping setting."""

WORKERS = frozenset(
    {"rollouts", "rollout_workers", "groups_per_worker", "worker_timeout", "ray_address"}
)
"""Settings that control where episodes are played."""

RESUMABLE = frozenset(
    {"wandb_project", "wandb_name", "tags", "tensorboard"}
    | {"log_path", "steps", "eval_every", "save_every", "samples", "engine", "base_url", "threads"}
    | {"failed_steps", "record", "parallel", "trust_remote_code"}
    | WORKERS
)
"""Settings that may change when resuming, because they don't affect what the run has learned."""


def read_train_settings(settings: Mapping[str, Any], recorded: Mapping[str, Any]) -> TrainSettings:
    """Read a run's settings. Defaults are the recorded settings or, in a new run, the recipe's."""
    _, preset = choose_recipe(settings)
    under = recorded or preset
    gathered = gather({**settings, "tasks": taskset_of(settings)}, MAPPINGS, under)
    return read_settings(TrainSettings, gathered, under)


def as_record(settings: TrainSettings) -> dict[str, Any]:
    """Convert settings to their form in ``run.json``, with import paths or names for objects."""
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
    """Return whether ``value``, an agent or tasks, is missing."""
    return value is None or (isinstance(value, str) and not value)


def differences(before: Mapping[str, Any], settings: TrainSettings) -> Sequence[str]:
    """Return changes that are not allowed when resuming, as lines ``key: recorded -> now``.

    A setting that was added to evert after the run was recorded counts as having its default value.
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
        InvalidModelError: No renderer is set and the model is unknown, or the renderer does not
            accept chat template variables.
    """
    if settings.chat_template:
        return with_variables(settings.renderer_name or TEMPLATE, settings.chat_template)
    return settings.renderer_name or renderer_name_of(settings.model_name)
