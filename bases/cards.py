"""The sections that all model cards share: front matter, size, commands and losses."""

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
    """Write a base's model card to ``README.md``.

    Args:
        folder: The base's folder.
        model: The base.
        commands: The commands that produced the base, in order.
        losses: Mean losses over the last steps, by batch name.
        text: The card's template, with placeholders for ``parameters``, ``vocabulary``,
            ``commands``, ``losses`` and all ``facts``.
        digits: Decimal places for the losses.
        **facts: Values for the placeholders that are specific to this base.
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
    """Read the commands that produced a base from its model card. If it has no card, return []."""
    card = folder / "README.md"
    lines = card.read_text().splitlines() if card.is_file() else []
    return [line.strip() for line in lines if line.startswith("    python -m ")]
