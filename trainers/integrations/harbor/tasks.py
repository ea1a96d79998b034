"""Harbor task folders as a taskset (``evert.envs.tasksets``).

evert train tasks=harbor:examples/harbor tasks.agent=terminus-2 tasks.environment=bubblewrap
"""

# pyright: reportMissingImports=false

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from evert.bridge.errors import EvertError
from evert.envs.games import Game, GameError, Metric
from evert.trainers.integrations.harbor.folders import TaskFolders


def harbor(
    path: str,
    *,
    agent: Any = "terminus-2",
    environment: Any = "docker",
    held_out: int | None = None,
    **options: Any,
) -> Game:
    """Return a game that plays the tasks in a folder.

    Args:
        path: The folder.
        agent: See ``HarborAgent``.
        environment: See ``HarborAgent``.
        held_out: How many tasks to hold out from training (default: a fifth).
        **options: Other options of ``HarborAgent``.

    Raises:
        GameError: Harbor is not installed; the folder, agent, environment or option does not
            exist; or a task is invalid or cannot run in that environment.
    """
    if find_spec("harbor") is None:
        raise GameError(
            "tasks=harbor requires harbor 0.25 and Python 3.12 or newer. Install it together "
            "with evert in a separate environment: pip install harbor==0.25.0 evert."
        )
    try:
        folders = TaskFolders(path, held_out=held_out)
        _check(folders.all, agent=agent, environment=environment, **options)
    except EvertError as error:
        raise GameError(f"tasks=harbor:{path}: {error}") from error
    settings = {"agent": agent, "environment": environment, **options}
    arguments = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    split = f"evert.harbor:TaskFolders({path!r}, held_out={held_out!r})"
    return Game(
        "harbor/Tasks-v0",
        agent=f"evert.harbor:HarborAgent({arguments})",
        train_tasks=f"{split}.train",
        test_tasks=f"{split}.test" if folders.test else "",
        recipe={"batch_size": 4, "group_size": 8, "max_tokens": 1024, "eval_every": 10},
        metrics={"solved": Metric("Trials with the full reward", "share", drawn=("train", "test"))},
    )


def _check(tasks: Sequence[str], **options: Any) -> None:
    """Validate all trial options, without the slow import of ``HarborAgent``."""
    from evert.trainers.integrations.harbor.options import OWN, TrialOptions, checked_url

    if options.get("serve_address"):
        checked_url(options["serve_address"])
    trial = TrialOptions(**{name: value for name, value in options.items() if name not in OWN})
    if trial.is_sandbox:
        from evert.trainers.integrations.harbor.plan import check

        check(tasks)
