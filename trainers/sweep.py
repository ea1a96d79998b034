"""Search the settings of a run: ``evert sweep env=identity learning_rate=1e-4,1e-3 steps=10``.

Here is the command; the sweep is ``sweeping/loop.py``.
"""

import sys
from collections.abc import Sequence

from evert.bridge.errors import MissingPackageError
from evert.trainers.command import run_command

PROGRAM = ("python", "-m", "evert.trainers.sweep")
HELP = """\
Usage: evert sweep key=value ...

Trains many times and says which settings did best. Every setting of `evert train` can be given;
one with a list or a range is searched, the others are the same in all runs:

  learning_rate=1e-4,3e-4,1e-3     each of these; words, too: loss_fn=ppo,cispo
  learning_rate=1e-4..1e-2         numbers between, evenly by their logarithm
  group_size=4..16                 whole numbers between; 4..64:log evenly by their logarithm
  seed=0,1,2                       repetitions: without them luck decides, too

  evert sweep env=identity learning_rate=1e-4,3e-4,1e-3 group_size=4,8 seed=0,1 steps=10
  evert sweep out=sweeps/NAME      go on: what failed or was interrupted is done again

"""


def main(argv: Sequence[str] | None = None, program: Sequence[str] = PROGRAM) -> int:
    """Run the command; see ``run_command``.

    Args:
        argv: ``key=value`` arguments; None for those of this process.
        program: What to call to run this command again.
    """
    return run_command(lambda arguments: _sweep(arguments, program), argv, _usage)


def _usage(arguments: Sequence[str]) -> str:
    from evert.trainers.arguments import settings_help
    from evert.trainers.sweeping.study import SweepSettings

    return HELP + settings_help(SweepSettings, {})


def _sweep(arguments: Sequence[str], program: Sequence[str]) -> int:
    try:
        from evert.trainers.sweeping.loop import sweep
    except ImportError as error:
        raise MissingPackageError(
            f"A sweep needs the package optuna, which is not installed ({error}). Install it with "
            "pip install 'evert[sweep]'."
        ) from error
    return sweep(arguments, program)


if __name__ == "__main__":
    sys.exit(main())
