"""The parts of every base's model card: its front matter, size, commands and losses."""

from collections.abc import Mapping
from pathlib import Path

from transformers import Qwen3ForCausalLM

_FRONT = """\
---
library_name: transformers
pipeline_tag: text-generation
license: mit
---

"""


def write_card(
    folder: Path,
    model: Qwen3ForCausalLM,
    commands: list[str],
    losses: Mapping[str, float],
    text: str,
    *,
    digits: int = 3,
    **facts: object,
) -> None:
    """Write ``README.md``: what a base is, how it was made (``commands``), what it can do.

    Args:
        folder: The base's folder.
        model: The base.
        commands: The commands that made it, in order.
        losses: Mean losses over the last steps, by kind of batch.
        text: The card, with ``{name}`` for facts, parameters, vocabulary, commands and losses.
        digits: Decimal places of a loss.
        **facts: Values for this base's own placeholders.
    """
    filled = text.format(
        parameters=model.num_parameters() / 1e6,
        vocabulary=model.config.vocab_size,
        commands="\n".join(f"    {command}" for command in commands),
        losses=", ".join(f"{name} {loss:.{digits}f}" for name, loss in losses.items()),
        **facts,
    )
    (folder / "README.md").write_text(_FRONT + filled)


def commands_of(folder: Path) -> list[str]:
    """Return the commands that made a base, from its model card; none if it has no card."""
    card = folder / "README.md"
    lines = card.read_text().splitlines() if card.is_file() else []
    return [line.strip() for line in lines if line.startswith("    python -m ")]
