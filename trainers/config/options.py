"""The settings of ``evert.train`` as a TypedDict, for type checkers.

If this is out of date, ``tests/trainers/config/test_train_options.py`` prints the correct fields.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from evert.trainers.engine.training.losses import LossFn


class TrainOptions(TypedDict, total=False):
    """Settings of a training run, with the same types as in ``TrainSettings``."""

    policy_names: tuple[str, ...] | str
    seats: tuple[str, ...] | str
    limits: Any
    context_length: int | None
    agent_timeout: float | None
    model_timeout: float | None
    on_agent_error: float | None
    on_truncation: Literal["deliver", "end"]
    context_overflow_reward: float
    format_retries: int
    keep_completed_arguments: bool
    parse_error_policy: Any
    close_timeout: float
    env: str
    renderer_name: str | None
    chat_template: Mapping[str, Any]
    trust_remote_code: bool
    device: str
    threads: int | None
    dtype: Literal["auto", "float32", "bfloat16", "float16"]
    train_tasks: Any
    sampler: Any
    model_name: str
    engine: Literal["auto", "embedded", "service"]
    base_url: str | None
    full_parameter: bool | None
    lora_rank: int
    allow_hosts: tuple[str, ...] | str
    rollouts: Literal["here", "pool", "ray"]
    rollout_workers: int | None
    groups_per_worker: int
    worker_timeout: float | None
    ray_address: str | None
    warm_up_steps: int
    demonstrations: Any
    warm_up_min_reward: float | None
    warm_up_batch: int
    warm_up_learning_rate: float
    steps: int
    batch_size: int
    group_size: int
    test_group_size: int
    learning_rate: float
    loss_fn: LossFn
    num_substeps: int
    kl_penalty: float
    max_tokens: int
    failed_steps: int
    models: Mapping[str, Any]
    league: float
    test_opponent: str
    cookbook: Mapping[str, Any]
    eval_every: int
    save_every: int
    parallel: int | None
    samples: int
    record: bool | float
    seed: int
    log_path: str | Path | None
    wandb_project: str | None
    wandb_name: str | None
    tags: tuple[str, ...] | str
    tensorboard: bool
