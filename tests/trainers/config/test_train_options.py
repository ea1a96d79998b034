"""The types of the settings of ``evert.train``: a TypedDict generated from ``TrainSettings``."""

import typing
from pathlib import Path
from typing import Any

import chz

from evert.trainers.config import options
from evert.trainers.config.options import TrainOptions
from evert.trainers.config.train import TrainSettings

NAMED = {"agent", "tasks", "test_tasks"}
"""Settings that are named parameters of ``evert.train``."""
WIDER = {
    "tuple[str, ...]": "tuple[str, ...] | str", "log_path": "str | Path | None",
    "limits": "Any", "parse_error_policy": "Any",  # these also accept the Cookbook's objects
    "loss_fn": "LossFn",
}  # fmt: skip
"""Maps a setting, or a type of setting, to the wider type that is accepted from Python."""


def type_of(name: str, kind: Any) -> str:
    text = kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else repr(kind)
    text = text.replace("typing.", "").replace("collections.abc.", "").replace("'", '"')
    return WIDER.get(name) or WIDER.get(text) or text


def test_the_typed_dict_matches_the_settings_and_their_types() -> None:
    lines = [
        f"    {name}: {type_of(name, field.x_type)}\n"
        for name, field in chz.chz_fields(TrainSettings).items()
        if name not in NAMED
    ]
    written = Path(options.__file__).read_text().rpartition('"""\n\n')[2]
    assert written == "".join(lines), "".join(lines)
    assert TrainOptions.__annotations__.keys() == chz.chz_fields(TrainSettings).keys() - NAMED
