"""Validate settings before importing torch, so that typos are reported immediately."""

import re
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from evert.bridge.errors import EvertError, InvalidAgentError, InvalidDatasetError, did_you_mean
from evert.bridge.groups.tasks import check_tasks, load_tasks
from evert.bridge.import_paths import resolve
from evert.bridge.records.files import record_files
from evert.bridge.records.row_files import holds_records, names_file, row_files
from evert.bridge.tokens.bases import HERMES, TEMPLATE
from evert.trainers.config.arguments import (
    FIELDS,
    UsageError,
    check_name,
    cookbook_fields,
    number_in,
)
from evert.trainers.config.demonstrations import read_demonstrations
from evert.trainers.config.episode import EpisodeSettings
from evert.trainers.config.fields import DemonstrationsError

RENDERERS = "renderers/__init__.py"
"""The Cookbook file with the function that creates renderers by name."""

PATHS = {
    "agent": ("agent", InvalidAgentError),
    "train_tasks": ("tasks", InvalidDatasetError),
    "test_tasks": ("tasks", InvalidDatasetError),
    "sampler": ("sampler", InvalidDatasetError),
    "demonstrations": ("demonstrations", DemonstrationsError),
}
"""Maps settings that take an import path (or, from Python, an object) to a label and an error
class."""

FILES = frozenset({"train_tasks", "test_tasks", "demonstrations"})
"""Settings in ``PATHS`` that can also name a file."""


def named_objects(settings: EpisodeSettings) -> dict[str, Any]:
    """Check the keys, numbers and paths in the settings, and return the objects they refer to.

    If a setting is missing, its object is None. If it refers to records, its object is also None,
    because reading records would import torch.
    """
    for name in FIELDS:
        for path in getattr(settings, name, ()):
            key = path.partition(".")[0] if name == "cookbook" else path
            check_name(key, cookbook_fields(name), f"{name}.{{}}".format)
    _check_numbers(settings)
    values = {key: getattr(settings, key, None) for key in PATHS}
    game = getattr(settings, "game", None)  # only set for evaluations
    if game is not None and game.agent[:6] != "evert.":
        values["agent"] = game.agent
    builtin = {k for k, path in values.items() if isinstance(path, str) and path[:6] == "evert."}
    objects = dict[str, Any]()
    for key in sorted(values, key=builtin.__contains__):  # evert's games last, as some import torch
        value, (kind, error) = values[key], PATHS[key]
        target, label = value, key
        if key in FILES and isinstance(value, str) and names_file(value):
            target = _read_file(key, value, error)
        elif isinstance(value, str):
            target, label = resolve(value, kind, error) if value else None, f"{key}={value}"
        if kind == "tasks" and target is not None:
            _check_tasks(label, target)
        objects[key] = target
    if renderer := getattr(settings, "renderer_name", None):
        check_renderer(renderer)
    return objects


def named_files(settings: object) -> dict[str, list[Path]]:
    """Return the files that the settings name. Without a warm-up, ignore the demonstrations."""
    unused = {"demonstrations"} if not getattr(settings, "warm_up_steps", 0) else set()
    paths = {key: getattr(settings, key, None) for key in FILES - unused}
    return {
        key: record_files(path) if holds_records(path, PATHS[key][1]) else row_files(path)
        for key, path in sorted(paths.items())
        if isinstance(path, str) and names_file(path)
    }


def _read_file(key: str, path: str, error: type[EvertError]) -> Sequence[Any] | None:
    """Read a setting's file; return None for records, because reading them would import torch."""
    if holds_records(path, error):
        record_files(path)
        return None
    return read_demonstrations(path, None) if key == "demonstrations" else load_tasks(path)


def texts_as_tasks(tasks: Mapping[str, Any]) -> list[str]:
    """Return a warning for each string that was passed instead of a list of tasks."""
    return [
        f"{name} is a string ({text!r:.60}), so every character becomes a task. Use a list "
        "instead: TASKS = [...]."
        for name, text in tasks.items()
        if isinstance(text, str | bytes)
    ]


def check_renderer(name: str, key: str = "renderer_name") -> None:
    """Raise an error if the Cookbook has no such renderer; ``key`` is the setting's name."""
    # if the agent's module has imported this, it may have registered renderers of its own
    if "tinker_cookbook.renderers" in sys.modules:
        return
    source = (files("tinker_cookbook") / RENDERERS).read_text(encoding="utf-8")
    names = [TEMPLATE, HERMES, *re.findall(r'if name == "(\w+)"', source)]
    if name.partition("(")[0] not in names:
        hint = did_you_mean(name, names, "{}") or f" Renderers: {', '.join(names)}."
        raise UsageError(
            f"{key}={name} is not a Cookbook renderer.{hint} Leave out {key} to use the renderer "
            "that matches the model."
        )


def _check_numbers(settings: EpisodeSettings) -> None:
    for key, value in settings.limits.items():
        if (limit := number_in(value)) is not None and limit <= 0:
            raise UsageError(f"limits.{key} must be positive or None (unlimited), got {value}.")
    for name, key in (("parse_error_policy", "max_consecutive"), ("cookbook", "temperature")):
        value = getattr(settings, name, {}).get(key)
        if (number_in(value) or 0.0) < 0:
            raise UsageError(f"{name}.{key} must be at least 0, got {value}.")


def _check_tasks(label: str, tasks: Any) -> None:
    check_tasks(tasks, label)
    if len(tasks) == 0:
        raise InvalidDatasetError(f"{label} contains no tasks; expected at least one.")
