"""Curves of a loop of one's own: ``evert.open_log`` begins a log, ``evert.log`` adds to it.

    with evert.open_log("runs/codec", tensorboard=True):
        ...
        evert.log(step, compressor={"reward": 1.2}, reconstructor={"nll": 0.4})

writes ``compressor/reward`` and ``reconstructor/nll``, so that the numbers of several models stay
apart wherever they go: into ``metrics.jsonl``, TensorBoard, Weights & Biases, or any logger as the
Cookbook has them (``ml_log``). What is open is the process's: agents log from threads of their own.
"""

import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from typing import Any, Self

from tinker_cookbook.utils import ml_log

from evert.bridge.errors import EvertError, MissingPackageError, repr_of

EVENTS = "tensorboard"


class LogError(EvertError, ValueError):
    """What was to be logged cannot be: there is no log, or it is no number."""


class EventsLogger(ml_log.Logger):
    """Writes TensorBoard's event files; what is there from ``purge_step`` on is replaced."""

    def __init__(self, path: Path, purge_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        make: Any = SummaryWriter
        self._writer = make(str(path), purge_step=purge_step)

    def log_hparams(self, config: Any) -> None:
        """Nothing to do: event files are for curves."""

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Write numbers, at once: the process may be killed any time."""
        for name, value in numbers(metrics).items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


def numbers(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a row's metrics that are curves."""
    return {k: v for k, v in metrics.items() if k != "step" and isinstance(v, int | float)}


class Log(ml_log.MultiplexLogger):
    """An open log; closed by its ``close``, or at the end of its ``with`` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """One row, from whatever thread."""
        with _lock:
            super().log_metrics(metrics, step)

    def close(self) -> None:
        """Log no more; the log that was open before is in use again."""
        if self in _open:
            _open.remove(self)
            super().close()


_open: list[Log] = []
"""The one in use is the last."""
_lock = threading.Lock()


def open_log(
    folder: str | Path,
    *,
    tensorboard: bool = False,
    wandb_project: str | None = None,
    wandb_name: str | None = None,
    config: Any = None,
    loggers: Sequence[ml_log.Logger] = (),
) -> Log:
    """Begin a log that ``evert.log`` adds to, from anywhere in this process.

    Args:
        folder: Made if it is missing. ``metrics.jsonl`` in it has a line a call; where there is one
            already, it goes on.
        tensorboard: Write event files to ``folder/tensorboard``, too (extra ``tensorboard``).
        wandb_project: Log to a run of this project of Weights & Biases, too (extra ``wandb``). The
            embedded engine keeps the process off the network: give it
            ``allow_hosts=["api.wandb.ai"]``, or set ``WANDB_MODE=offline``.
        wandb_name: Of that run.
        config: Settings to keep with the log: a dict, a chz object or a dataclass.
        loggers: Others of the Cookbook's kind.

    Returns:
        The log; also a context manager that closes it.

    Raises:
        MissingPackageError: A tracker is not installed.
    """
    for package, wanted in {"tensorboard": tensorboard, "wandb": wandb_project}.items():
        if wanted and find_spec(package) is None:
            raise MissingPackageError(
                f"open_log was asked for {package}, which is not installed. Install it with "
                f"pip install {package}, or leave it out: metrics.jsonl has all that is logged."
            )
    path = Path(folder).expanduser()
    path.mkdir(parents=True, exist_ok=True)
    found: list[ml_log.Logger] = [ml_log.JsonLogger(str(path))]
    if tensorboard:
        found.append(EventsLogger(path / EVENTS))
    if wandb_project:
        found.append(ml_log.WandbLogger(wandb_project, log_dir=path, wandb_name=wandb_name))
    made = Log([*found, *loggers])
    if config is not None:
        made.log_hparams(config)
    _open.append(made)
    return made


def log(step: int, /, **names: Mapping[str, Any] | float) -> None:
    """Log numbers of a step, each under the name that it belongs to.

        evert.log(step, compressor={"reward": 1.2, "length": 5}, judge=metrics, seconds=0.7)

    Args:
        step: Of the loop, from 0. Several calls may add to one step.
        **names: A model, a seat or a part, with its numbers, which become ``name/number``; a number
            alone keeps its name. NumPy's and PyTorch's are numbers, too.

    Raises:
        LogError: No log is open, or a value is no number.
    """
    if not _open:
        raise LogError(
            f"evert.log got numbers of step {step}, and no log is open. Put the loop into "
            '`with evert.open_log("runs/NAME"):`.'
        )
    rows: dict[str, float] = {}
    for name, value in names.items():
        if isinstance(value, Mapping):
            rows |= {f"{name}/{key}": _number(f"{name}/{key}", one) for key, one in value.items()}
        else:
            rows[name] = _number(name, value)
    _open[-1].log_metrics(rows, int(step))


def _number(name: str, value: Any) -> float:
    plain = value.item() if getattr(value, "shape", None) == () else value
    if not isinstance(plain, Real):
        raise LogError(
            f"evert.log got {name}={repr_of(value)}; expected one number. Log the mean of an "
            "array, or its parts under names of their own."
        )
    return int(plain) if isinstance(plain, bool) else plain  # type: ignore[return-value]
