"""User errors are reported in one line and leave no files behind."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import chz
import pytest
import torch
from rich.console import Console
from tests.kit import Patch, Shown
from tests.trainers.kit import environment
from tinker.types import LossFnType
from tinker_cookbook import model_info
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits
from tinker_cookbook.rl.train import Config

import evert
from evert.bridge.errors import InvalidDatasetError
from evert.trainers import cli
from evert.trainers.commands.export import ExportSettings
from evert.trainers.commands.plan import PlanSettings
from evert.trainers.commands.report import ReportSettings
from evert.trainers.commands.rescore import RescoreSettings
from evert.trainers.commands.serve import ServeSettings
from evert.trainers.config import early_checks
from evert.trainers.config.arguments import UsageError, cookbook_fields
from evert.trainers.config.evaluate import EvaluateSettings
from evert.trainers.config.train import TrainSettings
from evert.trainers.engine.training.losses import LOSSES, LossFn
from evert.trainers.sweeping.study import SweepSettings
from evert.trainers.training.resuming import settings_of_run

TINY = "evaluate env=identity models=evert-tiny"
OWN = "evaluate agent=mine:agent test_tasks=mine:TASKS models=evert-tiny"

LIGHT = {
    "train agent=missing:x": "train_tasks= is missing: only got agent=missing:x.",
    "train train_tasks=mine:TASKS": "agent= is missing: only got train_tasks=mine:TASKS.",
    "train agent=missing:x train_tasks=mine:TASKS": "No agent at 'missing:x'",
    "train agent=mine.py:agent train_tasks=mine:TASKS": "Did you mean mine:agent?",
    "train agent=../mine.py:agent train_tasks=mine:TASKS": "mine.py:agent'. Expected an",
    "train agent=mine:agent train_tasks=mine:nothing": "No tasks at 'mine:nothing'",
    "train agent=mine:agent train_tasks=mine:EMPTY": "train_tasks=mine:EMPTY contains no tasks;",
    "train agent=mine:agent train_tasks=mine:yields": "train_tasks=mine:yields is a function;",
    "train agent=mine:agent train_tasks=mine:BY_NAME": "train_tasks=mine:BY_NAME is a dict;",
    "train env=identity test_tasks=mine:EMPTY": "test_tasks=mine:EMPTY contains no tasks;",
    "train env=identitty": "There is no game 'identitty'. Did you mean env=identity?",
    "train env=identity limits.max_turns=-3": "limits.max_turns must be positive or None",
    "train env=identity cookbook.temperature=-1": "cookbook.temperature must be at least 0, got -1",
    "train env=identity parse_error_policy.max_consecutive=-1": "max_consecutive must be at least",
    "train env=identity temperature=0.5": "Did you mean 'cookbook.temperature'?",
    "train env=identity max_turns=3": "Did you mean 'limits.max_turns'?",
    "train env=identity limits.maxturns=3": "Did you mean 'limits.max_turns'?",
    "train env=identity parse_error_policy.max=1": "There is no setting 'parse_error_policy.max'",
    "train env=identity cookbook.temprature=1": "There is no setting 'cookbook.temprature'. Did",
    "train env=twenty_questions sampler=evert:Curriculam": "No sampler at 'evert:Curriculam'",
    "train env=identity model_name=evert-tinny": "Did you mean evert-tiny?",
    "train env=identity model_name=old": "model_name=old is a run; expected a model. To continue",
    "train env=identity model_name=old@5": "use evert train log_path=old steps=N.",
    "train env=identity model_name=old@5/": "use evert train log_path=old steps=N.",
    "train env=identity models.user=runs/nothing": "models.user: There is no run or model at",
    "train env=identity models.temperature=0": "Did you mean the option models.NAME.temperature?",
    "evaluate env=identity models=runs/nothing": "There is no run or model at 'runs/nothing'",
    "evaluate env=identity models=evert-tiny limits.maxturns=3": "no setting 'limits.maxturns'",
    "evaluate env=identity models=evert-tiny models.user=runs/no": "model at 'runs/no'",
    "evaluate agent=missing:x test_tasks=mine:TASKS models=evert-tiny": "No agent at 'missing:x'",
    "sweep env=identity limits.maxturns=3 seed=0,1": "There is no setting 'limits.maxturns'",
    "sweep env=identity model_name=evert-tinny seed=0,1": "Did you mean evert-tiny?",
    "serve model=runs/nothing": "There is no run or model at 'runs/nothing'. There is no fold",
    "serve model=Qwen/X": "Did you mean Qwen/Qwen3-4B? Expected a run folder",
    "report runs/nothing": "There is no folder runs/nothing.",
    "rescore run=runs/nothing reward=mine:agent": "There is no folder or file runs/nothing.",
    "rescore run=old reward=mine:agent": "old contains no rollouts.",
    "rescore run=. reward=missing:x": "No reward at 'missing:x'",
    "export run=runs/nothing": "There is no folder or file runs/nothing.",
    "export run=old": "old contains no rollouts.",
    "engine plan modl=evert-tiny": "There is no setting 'modl'",
    "train env=identity stepz=3": "no setting 'stepz' (got 'stepz=3'). Did you mean 'steps'?",
    "train xyz=5": "There is no setting 'xyz' (got 'xyz=5'). Settings: policy_names, ",
    "train =5": "There is no setting ''",
    "train env = identity": "must have the form key=value, without spaces: env=identity",
    "train env= identity steps= 3": "without spaces: env=identity steps=3",
    "train env =identity": "without spaces: env=identity",
    "train steps 3": "Got 'steps'; settings must have the form key=value. Did you mean steps=",
    "train --steps": "'--steps'; settings must have the form key=value. Did you mean steps=...?",
    "train env=identity steps=many": "steps takes an integer, got 'many'",
    "train env=identity seed=9999999999999": "seed must be between -2**32 and 2**32",
    "train env=identity renderer_name=nope": "renderer_name=nope is not a Cookbook renderer",
    "train env=identity learning_rate=nan": "learning_rate must be a finite number, got nan",
    "train env=identity learning_rate=-1": "learning_rate must be above 0, got -1.0",
    "train --env identity": "Got '--env'; settings must have the form key=value. Did you mean env=",
    "train env=identity device=gpu": "cpu, cuda, cuda with an index (cuda:1) or mps",
    "train env=identity device=mps:0": "device must be auto, cpu, cuda",
    "train env=identity dtype=int8": "dtype takes auto or float32 or bfloat16 or float16",
    "train env=identity model_name=/nowhere": "model at '/nowhere'",
    "train env=identity log_path=x model_name=runs/nope": "no run or model at 'runs/nope'",
    "train log_path=x": "No agent to train. log_path=x has no run to resume.",
    "train": "No agent to train. Pass env= with one of guess_number, hints, identity,",
    "train env=identity log_path=.": "is not empty and is not an evert run: it has no run.json.",
    "train env=identity tasks=gymnasium:X-v1": "Got both env=identity and tasks=gymnasium:X-v1;",
    "train agent=a:b tasks=gymnasium:X-v1": "Got both tasks=gymnasium:X-v1 and agent=a:b; expected",
    "train tasks=gymnasium:Taxy-v4": "Did you mean: `Taxi`",
    "train env=identity engine=service": "TINKER_API_KEY is not set",
    "train env=identity warm_up_steps=3": "warm_up_steps=3 is set, but there are no d",
    "train env=identity warm_up_steps=3 demonstrations=a.b:c": "No demonstrations at 'a.b:c'",
    "train env=identity warm_up_steps=3 demonstrations=mime.jsonl": "no file or folder mime.jsonl",
    "train env=identity warm_up_steps=3 demonstrations=mine.py": "has an unsupported file",
    "train env=identity warm_up_steps=3 demonstrations=old": "old contains no rollouts.",
    "train env=identity warm_up_steps=3 demonstrations=mime": "no import path in the demonst",
    "train env=identity warm_up_steps=0 demonstrations=x.jsonl": "not used because warm_up_steps=0",
    "train agent=mine:agent train_tasks=data/tasks.csv": "no file or folder data/tasks.csv",
    "evaluate agent=mine:agent test_tasks=t.csv models=evert-tiny": "no file or folder t.csv",
    "train env=tic_tac_toe league=2": "league must be a fraction from 0 (none) to 1 (all), got 2.0",
    "train env=identity league=0.5": "require an agent with at least two seats",
    "train env=tic_tac_toe test_opponent=runs/nobody": "test_opponent: There is no run or model",
    "evaluate env=tic_tac_toe models=evert-tiny opponent=runs/nobody": "error: opponent: There is",
    "train env=identity rollout_workers=2": "is set, but rollouts=here plays all",
    "train env=identity ray_address=auto": "Pass rollouts=ray, or leave ray_address out.",
    "train env=identity rollouts=pool ray_address=auto": "ray_address is set, but rollouts=pool.",
    "train env=identity models.u=https://host/v1": "an address without a model. Add the",
    "train env=identity models.u=evert-tiny models.u.temperature=hot": "models.u.temperature takes",
    "train env=identity models.u=evert-tiny models.u.api_key_env=K": "setting 'models.u.api_key_en",
    "train env=identity models.u=openai:m models.u.max_tokens=3": "setting 'models.u.max_tokens'",
    "evaluate env=identity models=": "No models to evaluate",
    "evaluate models=evert-tiny": "No tasks to evaluate on",
    "evaluate env=identity agent=a:b models=evert-tiny": "expected one",
    "evaluate identity": "Did you mean env=identity?",
    "evaluate env=identity modles=evert-tiny": "Did you mean 'models'?",
    "evaluate env=identity models=oracle": "identity has no player 'oracle', unlike twenty_q",
    "evaluate env=identity models=some-model": "the model 'some-model', which is neither",
    "evaluate env=identity models=evert-tiny opponent=evert-tiny": "but seats=(none)",
    f"{TINY} seeds=0": "seeds must be at least 1, got 0",
    f"{TINY} temperature=-1": "temperature must be at least 0",
    f"{TINY} max_tasks=0": "max_tasks must be at least 1",
    f"{OWN} split=train": "no such tasks",
    f"{OWN} models.judge.temperature=0": "models.judge.temperature has no model",
    f"{OWN} limits=3": "limits needs a key after a dot, for example limits.max_turns=20; got '3'",
    f"{OWN} frozen.judge=evert-tiny": "There is no setting 'frozen.judge'",
    f"{TINY} out=.": "not empty and is not one of evert's evaluations",
    "sweep out=. env=identity seed=0,1": "not empty and is not one of evert's sweeps",
    "sweep env=identity seed=0,1 parallel=0": "at least 1",
    "sweep env=identity seed=0,1 trails=3": "Did you mean 'trials'",
    "sweep env=identity seed=0,1 log_path=x": "There is no setting 'log_path'",
    "report out=x": "No run given.",
    "report smoth=1": "Did you mean 'smooth'?",
    "report smooth=1": "smooth must be at least 0 and less than 1, got 1.",
    "report sample_price=cheap": "sample_price takes a number or None, got 'cheap'.",
    "report train_price=-1": "train_price must be at least 0, got -1.0.",
    "serve": "model must be set, because there is no",
    "serve model=openai:gpt-5": "is not on this machine, so it cannot be served here",
    "serve evert-tiny": "Did you mean model=evert-tiny?",
    "serve model=evert-tiny port=70000": "port must be from 0 to 65535, got 70000.",
    "serve model=evert-tiny device=foo": "device must be auto, cpu, cuda",
    "engine plan device=foo": "device must be auto, cpu, cuda",
    "engine": "evert engine got 'nothing', expected plan",
    "engine plan lora_rank=0": "lora_rank must be at least 1",
    "engine plan dtype=int8": "dtype takes auto or float32 or",
    "engine plan model=openai:x": "not on this machine, so it cannot be planned here",
    "engine plan model=./none": "There is no run or model at './none'",
    "rescore": "run",
    "export": "run",
    "sweep env=identity": "There is nothing to search",
    "sweep out=. env=identity seed=0,1 learning_rate=1": "not one of evert's sweeps",
    "serve model=evert-tiny@5": "model at 'evert-tiny@5'. Did you mean evert-tiny?",
    "serve model=~/none": "There is no run or model at '~/none'",
    "serve model=nix": "in the local Hugging Face cache",
    "serve model=nix:x": "Check the name, or download it first",
    "train env=identity loss_fn=pp": "loss_fn takes importance_sampling or ppo",
    "train env=identity renderer_name=qwen33": "Did you mean qwen3?",
    "train env=identity models.u=evert-tiny models.u.renderer_name=qwen33": "Did you mean qwen3",
    "train env=identity models.u=nix": "does not recommend a renderer for the model 'nix'",
    "train env=identity log_path=mine.py": "mine.py cannot be used: Not a directory.",
    "train env=identity model_name=./nix": "There is no run or model at './nix'",
    "train env=identity model_name=openai:gpt-5": "cannot be trained here; expected one of",
    "train env=identity limits.max_turns.x=3": "Did you mean 'limits.max_turns'?",
    "train env=tic_tac_toe league.x=1": "There is no setting 'league.x': league takes a number.",
    "train env=identity model_name=Qwen/Qwen3-8B engine=service": "TINKER_API_KEY is not set.",
    "train env=identity model_name=Qwen/Qwen3-4C": "no run or model at 'Qwen/Qwen3-4C'",
    "train env=identity log_path=~nosuch/x": "~NAME, but there is no such user on this",
}
"""Command line -> part of the error, which must be printed without importing torch."""

OTHERS = {
    "train env=identity device=cuda:99": "device=cuda:99 is not available",
    "train env=identity warm_up_steps=3 demonstrations=mine:TASKS": "expected a function that ta",
    "train env=identity log_path=mine.py/run": "cannot be written to",
    "train env=identity parse_error_policy.max_consecutive=x": "max_consecutive takes an integ",
    "train env=identity models.u=evert-tiny models.u.max_tokens=0": "max_tokens=0; expected",
    f"{TINY} search=True": "no variant with a search tool",
    "evaluate env=my_game models=evert-tiny": "split=all: my_game has no such tasks.",
    f"{OWN} models.policy=evert-tiny": "uses the name of the policy",
    f"{OWN} seats=one": "seats must be two or more unique names",
    f"{OWN} policy_names=a,a": "policy_names must be a model name or a list of unique",
    "sweep out=mine.py/s env=identity seed=0,1": "cannot be written to",
    "serve model=evert-tiny host=203.0.113.1 port=80": "Cannot listen on 203.0.113.1, port",
}
"""More command lines -> part of the error. These commands may take longer to fail."""

MINE = """
TASKS = ["a", "b"]
EMPTY = []
BY_NAME = {"a": 1}
def agent(client, task): ...
def yields():
    yield 1
"""

GAME = """
from evert.envs.games import Game
GAME = Game("MyGame-v0", "mine:agent", "mine:EMPTY", "mine:EMPTY")
"""

REGISTERS = """
from tinker_cookbook.renderers import register_renderer
register_renderer("my_renderer", None)
TASKS = EMPTY = ["a"]
def agent(client, task): ...
"""

PROGRAM = """
import sys
from evert.trainers.cli import main
for line in sys.stdin.read().splitlines():
    assert main(line.split()) == 1, line
    heavy = {"torch", "transformers", "tinker"} & sys.modules.keys()
    assert not heavy, (line, heavy)
    print("---", file=sys.stderr)
for line in ("train --help", "evaluate --help"):
    assert main(line.split()) == 0, line
    heavy = {"torch", "tinker", "transformers", "openai", "matplotlib"} & sys.modules.keys()
    assert not heavy, (line, heavy)
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Create a working directory with a user's module and a run."""
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "my_game.py").write_text(GAME)
    (tmp_path / "Qwen" / "Qwen3-4B").mkdir(parents=True)  # not the Hub model of this name
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "run.json").write_text('{"settings": {"steps": 3}}')
    return tmp_path


def left(home: Path) -> set[str]:
    """Return the names of files that were added to the working directory."""
    return {each.name for each in home.iterdir()} - {
        *("mine.py", "my_game.py", "old", "Qwen", "__pycache__")
    }


def test_a_mistyped_name_is_refused_before_torch_is_imported(home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment(),
        input="\n".join(LIGHT), capture_output=True, text=True, cwd=home, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *answers, rest = done.stderr.split("---\n")
    assert rest == ""
    wrong = {
        line: answer
        for (line, words), answer in zip(LIGHT.items(), answers, strict=True)
        if words not in answer or "Traceback" in answer
    }
    assert wrong == {}
    assert not left(home)


@pytest.mark.parametrize("command", sorted({line.split()[0] for line in OTHERS}))
def test_an_error_is_one_line_and_leaves_no_file(home: Path, command: str, capsys: Shown) -> None:
    for line, said in OTHERS.items():
        words = line.split()
        if words[0] == command:
            assert cli.main(words) == 1, line
            shown = capsys.readouterr().err
            assert shown.startswith("error: "), line
            assert said in " ".join(shown.split()), line
            assert "Traceback" not in shown, line
            assert not left(home), line


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_a_missing_gpu_is_refused_before_anything_is_created(
    home: Path, kind: str, monkeypatch: Patch, capsys: Shown
) -> None:
    for module in (torch.cuda, torch.backends.mps):
        monkeypatch.setattr(module, "is_available", lambda: False)
    for module in (torch.cuda, torch.mps):
        monkeypatch.setattr(module, "device_count", lambda: 0)
    checked = (
        f"device={kind} is not available: PyTorch found 0 devices of this type. Pass device=cpu or "
    )
    loaded = (
        f"Device '{kind}' was requested, but PyTorch can't find a {kind.upper()} device here. Use"
    )
    for line, text in {
        "train env=identity": checked,
        "evaluate env=identity models=evert-tiny": checked,
        "serve model=evert-tiny": loaded,
        "engine plan": loaded,
    }.items():
        assert cli.main([*line.split(), f"device={kind}"]) == 1, line
        assert text in " ".join(capsys.readouterr().err.split()), line
        assert not left(home), line


@pytest.mark.parametrize(
    "arguments",
    [
        ["agent=mine:agent", "test_tasks=mine:TASKS", "models.judge=evert-tiny"],
        ["env=my_game", "renderer_name=my_renderer"],
    ],
)
def test_a_renderer_that_the_agents_module_registers_is_known(
    home: Path, arguments: list[str]
) -> None:
    (home / "mine.py").write_text(REGISTERS)
    code = "import sys;"
    code += "from evert.trainers.commands.evaluate import prepare, read_pairs, KEYS;"
    code += "from evert.trainers.config.evaluate import read_evaluate_settings as read;"
    code += "s = read(read_pairs(sys.argv[1:], KEYS)); prepare(s, s.models)"
    judge = ["models.judge.renderer_name=my_renderer"] * ("models.judge" in str(arguments))
    command = [sys.executable, "-c", code, "models=evert-tiny", *arguments, *judge]
    subprocess.run(command, env=environment(), cwd=home, timeout=600, check=True)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("limits", RolloutLimits), ("parse_error_policy", ParseErrorPolicy), ("cookbook", Config)],
)
def test_the_fields_read_from_the_cookbooks_source_are_complete(name: str, kind: Any) -> None:
    assert cookbook_fields(name) == [*chz.chz_fields(kind)]


def test_the_renderers_read_from_the_cookbooks_source_are_complete(monkeypatch: Patch) -> None:
    monkeypatch.delitem(sys.modules, "tinker_cookbook.renderers")
    tables = [name for name in dir(model_info) if re.fullmatch("get_[a-z]+_info", name)]
    models = [model for name in tables for model in getattr(model_info, name)().values()]
    assert len(models) > 20
    for renderer in {name for model in models for name in model.recommended_renderers}:
        early_checks.check_renderer(renderer)
    with pytest.raises(UsageError, match="Did you mean qwen3"):
        early_checks.check_renderer("qwen3x")


def test_losses_match_tinkers_and_the_engine_supports_all() -> None:
    policy = {*get_args(LossFn)}
    assert {"cross_entropy", *policy} == {*LOSSES} == {*get_args(LossFnType)} - {"custom"}
    assert policy == {name for name, loss in LOSSES.items() if "advantages" in loss.required}


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"train_tasks": []}, InvalidDatasetError, "train_tasks contains no tasks; expected a"),
        ({"test_tasks": ()}, InvalidDatasetError, "test_tasks contains no tasks; expected at"),
        ({"train_tasks": iter("ab")}, InvalidDatasetError, "is a str.*iterator; expected a seq"),
        ({"agent": 3}, evert.InvalidAgentError, "must be callable"),
        ({"models": {"judge": None}}, UsageError, "models.judge has no model. Pass one with mod"),
        ({"stepz": 2}, UsageError, "There is no setting 'stepz'"),
        ({"learning_rate": math.nan}, UsageError, "learning_rate must be a finite number, got nan"),
    ],
)
def test_an_error_in_evert_train_names_its_setting_and_leaves_no_folder(
    tmp_path: Path, settings: dict[str, Any], error: type[Exception], said: str
) -> None:
    path = tmp_path / "run"
    given: dict[str, Any] = {"agent": lambda client, task: 0.0, "train_tasks": ["a"], **settings}
    with pytest.raises(error, match=said):
        evert.train(**given, log_path=path, console=Console(quiet=True))
    assert not path.exists()


class Unspoken(list[str]):
    """Tasks that cannot be printed."""

    def __repr__(self) -> str:
        raise MemoryError


def test_tasks_from_python_are_not_converted_to_text() -> None:
    tasks = Unspoken(["a"])
    settings = settings_of_run({"agent": lambda client, task: 0.0, "train_tasks": tasks})
    assert settings.train_tasks is tasks


@pytest.mark.parametrize(("command", "field"), [("train", "models"), ("evaluate", "frozen")])
def test_a_recorded_model_url_without_its_password_is_reported_by_its_setting(
    home: Path, command: str, field: str, capsys: Shown
) -> None:
    run = {"settings": {field: {"judge": "https://me:[PASSWORD]@host/v1#m"}, "env": "identity"}}
    file = {"train": "old/run.json", "evaluate": "old/evaluation.json"}[command]
    run["settings"]["models"] = run["settings"].get("models", ["evert-tiny"])
    (home / file).write_text(json.dumps(run))
    (home / "old" / "before.json").write_text("{}")
    resume = {"train": "log_path=old", "evaluate": "out=old"}[command]
    assert cli.main([command, resume]) == 1
    said = capsys.readouterr().err
    assert "models.judge is 'https://me:[PASSWORD]@host/v1#m': the password was not" in said
    assert "with the password: models.judge=..." in said


def test_evert_lists_its_commands_and_suggests_one_for_a_typo(capsys: Shown) -> None:
    assert cli.main(["--help"]) == 0
    assert "evert train env=identity" in capsys.readouterr().out
    assert cli.main(["trian"]) == 2
    assert "Did you mean 'train'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "kind", "shown"),
    [
        ("train env=identity", TrainSettings, "from recipe identity"),
        ("evaluate", EvaluateSettings, "models.KEY="),
        ("sweep", SweepSettings, "learning_rate=1e-4..1e-2"),
        ("serve", ServeSettings, "evert serve model="),
        ("report", ReportSettings, "Usage: evert report RUN [RUN ...] [key=value ...]"),
        ("rescore", RescoreSettings, "evert rescore run="),
        ("export", ExportSettings, "evert export run="),
        ("engine plan", PlanSettings, "evert engine plan model=NAME"),
    ],
)
def test_help_lists_every_setting(line: str, kind: Any, shown: str, capsys: Shown) -> None:
    assert cli.main([*line.split(), "--help"]) == 0
    out, errors = capsys.readouterr()
    assert (shown in out, "frozen.KEY" in out, errors) == (True, False, "")
    for name in chz.chz_fields(kind).keys() - {"frozen"}:  # given as models.KEY
        assert re.search(rf"^  {name}(\.KEY)?=", out, re.MULTILINE), name
