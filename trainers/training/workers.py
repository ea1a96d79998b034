"""Start the workers (``workers/``) for ``rollouts=pool`` and ``rollouts=ray``."""

import sys
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING

from evert.bridge.errors import NEEDS_UNIX, MissingPackageError
from evert.trainers.config.fields import RecipeError

if TYPE_CHECKING:
    from evert.trainers.config.train import TrainSettings
    from evert.trainers.workers.executor import WorkerExecutor


def check_workers(settings: "TrainSettings") -> None:
    """Check that the workers can be started, before the run begins."""
    options = {"rollout_workers": settings.rollout_workers, "ray_address": settings.ray_address}
    if settings.rollouts == "here":
        for name in [name for name, value in options.items() if value is not None]:
            raise RecipeError(
                f"{name} is set, but rollouts=here plays all episodes in this process. Pass "
                f"rollouts={'ray' if name == 'ray_address' else 'pool'}, or leave {name} out."
            )
    if settings.rollouts == "pool" and sys.platform == "win32":
        raise RecipeError(f"rollouts=pool {NEEDS_UNIX} rollouts=here works on Windows.")
    if settings.rollouts == "pool" and settings.ray_address is not None:
        raise RecipeError("ray_address is set, but rollouts=pool. Pass rollouts=ray instead.")
    if settings.rollouts == "ray" and find_spec("ray") is None:
        raise MissingPackageError(
            "rollouts=ray requires the ray package, which is not installed. Install it with "
            "pip install 'evert[ray]', or pass rollouts=pool to use processes on this machine."
        )


def rollout_workers(
    settings: "TrainSettings",
) -> "AbstractContextManager[WorkerExecutor | None]":
    """Return a context manager that runs the workers. With rollouts=here, it yields None."""
    number, room = settings.rollout_workers, settings.groups_per_worker
    timeout = settings.worker_timeout
    if settings.rollouts == "here":
        return nullcontext()
    if settings.rollouts == "pool":
        from evert.trainers.workers.pool import PoolRollouts

        return PoolRollouts(number, room, worker_timeout=timeout)
    from evert.trainers.workers.actors import RayRollouts

    try:
        return RayRollouts(number, room, address=settings.ray_address, worker_timeout=timeout)
    except ConnectionError as error:
        raise RecipeError(
            f"ray_address={settings.ray_address}: {error} Start a cluster there (ray start "
            "--head), or omit ray_address to start Ray on this machine."
        ) from error
