"""The parts of ``evert sweep`` (``commands/sweep.py``), which uses Optuna.

In reading order:

    study.py    the search space, and every attempt at every run
    results.py  the objective of a run, and which values are best
    process.py  a run in a separate process
"""

from evert.bridge.errors import MissingPackageError

try:
    import optuna as optuna
except ImportError as error:
    raise MissingPackageError(
        f"A sweep needs the package optuna, which is not installed ({error}). Install it with "
        "pip install optuna."
    ) from error
