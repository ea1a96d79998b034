"""Every recipe of the installed Cookbook either runs on the engine or is listed with a reason.

Each recipe runs from its command line, with settings that make the run small. A bundled base model
replaces the models, and local data replace the downloads (``local_data.py``). Nothing else is
replaced. After a run, its metrics must be finite, and its checkpoints must load and have the right
number of optimizer steps.
"""

import ast
import io
import logging
import math
import os
import runpy
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import datasets
import pytest
import tinker
import tinker_cookbook
from tests.kit import Patch, Shown
from tests.nightly import each
from tests.trainers.integrations.recipes import local_data
from tests.trainers.integrations.recipes.local_model import make_boxing_model
from tests.trainers.integrations.recipes.table import RECIPES, RUNS, Recipe
from tests.trainers.kit import sequences

from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.system.files import CHECKPOINTS, METRICS, read_jsonl

COOKBOOK = Path(tinker_cookbook.__file__).parent
BY_DAY = {recipe.module.partition(".")[0]: recipe for recipe in reversed(RUNS)}.values()
"""One recipe per folder of recipes."""

PACKAGE = "tinker_cookbook.recipes"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Start one engine for all recipes, with a local stand-in for every Hub model."""
    folder = tmp_path_factory.mktemp("store")
    stand_ins = {"Qwen/Qwen3.5-9B-Base": make_boxing_model(folder), "*/*": "evert-tiny"}
    with embedded_engine(folder, device="cpu", stand_ins=stand_ins) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Create a recipe's working directory, with local data in place of its downloads."""
    local_data.write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TINKER_COOKBOOK_RUNS_DIR", str(tmp_path / "runs"))
    for name in [name for name in os.environ if name.startswith("TINKER_API")]:
        monkeypatch.delenv(name)
    for name in ("load_dataset", "get_dataset_config_names"):
        theirs = getattr(datasets, name)
        for module in list(sys.modules.values()):
            if vars(module).get(name) is theirs:
                monkeypatch.setattr(module, name, getattr(local_data, name))
    return tmp_path


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in [handler for handler in root.handlers if handler not in before]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)


def run(recipe: Recipe, folder: Path, monkeypatch: Patch) -> None:
    """Run a recipe in this process, as ``python -m`` would."""
    log = folder / "log"
    saved = [row["sampler_path"] for row in read_jsonl(log / CHECKPOINTS)]
    places = {"log": log, "data": folder, "saved": "".join(saved[-1:])}
    monkeypatch.setattr(sys, "argv", [recipe.module, *recipe.settings.format(**places).split()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # recipes may warn
        runpy.run_module(f"{PACKAGE}.{recipe.module}", run_name="__main__", alter_sys=True)


def check_run(log: Path, steps: int, engine: Engine) -> None:
    """Assert that all metrics are finite and the last checkpoint has this many optimizer steps."""
    metrics = read_jsonl(log / METRICS)
    numbers = [value for row in metrics for value in row.values() if isinstance(value, float)]
    assert numbers
    assert all(math.isfinite(number) for number in numbers)
    last = read_jsonl(log / CHECKPOINTS)[-1]
    assert engine.store.read(last["state_path"]).steps == steps
    sampler = tinker.ServiceClient().create_sampling_client(model_path=last["sampler_path"])
    [reply] = sequences(sampler, *sampler.get_tokenizer().encode("Hi"), max_tokens=1)
    assert len(reply.tokens) == 1


@pytest.mark.parametrize("recipe", each(RUNS, BY_DAY), ids=lambda recipe: recipe.name)
def test_a_recipe_runs_from_its_command_line(
    recipe: Recipe, engine: Engine, folder: Path, monkeypatch: Patch, capsys: Shown
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(recipe.typed))
    if recipe.after is not None:
        run(recipe.after, folder, monkeypatch)
    run(recipe, folder, monkeypatch)
    for log, steps in recipe.steps.items():
        check_run(folder / log, steps, engine)
    for file in recipe.writes:
        assert "error" not in (folder / file).read_text()
    assert recipe.prints in capsys.readouterr().out


def entry_points() -> set[str]:
    """Return the recipe modules that can be run with ``python -m``."""
    names = set()
    for file in (COOKBOOK / "recipes").rglob("*.py"):
        name = ".".join(file.relative_to(COOKBOOK / "recipes").with_suffix("").parts)
        if name.endswith(".__main__"):
            names.add(name.removesuffix(".__main__"))
        elif any(map(_is_main, ast.parse(file.read_text()).body)):
            names.add(name)
    return names


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def test_the_table_lists_every_recipe_of_the_installed_cookbook() -> None:
    assert {recipe.module for recipe in RECIPES} == entry_points() - {"chat_sl.sweep.cli"}
