"""Implementation of ``evert sweep`` (``commands/sweep.py``), based on Optuna.

In reading order:

    study.py    the search space, and a record of every attempt at a run
    results.py  the objective, and how to find the best values
    process.py  running ``evert train`` in a separate process
"""

from evert.bridge.errors import MissingPackageError

try:
    import optuna as optuna
except ImportError as error:
    raise MissingPackageError(
        f"Sweeps require the optuna package, which is not installed ({error}). Install it with "
        "pip install optuna."
    ) from error
