"""Frozen models, seats and limits use the same settings in every command."""

import asyncio
import csv
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import chz
import pytest
import tinker
from rich.console import Console
from tests.kit import Patch, Shown, ask
from tests.trainers.kit import chat_endpoint
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits
from tinker_cookbook.utils.ml_log import dump_config

import evert
from evert import AgentDatasetBuilder, RemoteModel, ScriptedPolicy, TinkerModel
from evert.bridge.env.options import EnvOptions, EnvSettings
from evert.bridge.errors import RendererMismatchError
from evert.trainers.commands import evaluate, train
from evert.trainers.config.arguments import gather
from evert.trainers.config.backend import EngineChoice, running_engine
from evert.trainers.config.episode import EpisodeSettings, env_options
from evert.trainers.config.evaluate import read_evaluate_settings
from evert.trainers.config.fields import RecipeError
from evert.trainers.config.frozen_models import (
    check_frozen,
    fingerprint,
    frozen_models,
    needs_engine,
    pin_steps,
    read_models,
)
from evert.trainers.config.model_names import ModelNameError
from evert.trainers.config.train import MAPPINGS, read_train_settings
from evert.trainers.engine.common.errors import ModelNotFoundError
from evert.trainers.engine.common.network import network_is_refused
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.episodes.playing import EpisodeLog, EpisodeResult
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.sweeping.study import choices, read_plan
from evert.trainers.training.cookbook import SETTING_OF, cookbook_config

PATH = "tinker://r/sampler_weights/"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Write a run's checkpoint records and the files of its final weights."""
    folder = tmp_path / "run"
    weights = folder / "checkpoints" / "r" / "sampler_weights" / "final"
    weights.mkdir(parents=True)
    (weights / "model.safetensors").write_bytes(b"after twenty")
    settings = {"env": "identity", "model_name": "evert-tiny-20q", "renderer_name": "qwen3"}
    (folder / "run.json").write_text(json.dumps({"settings": settings}))
    records = [
        {"name": "000010", "batch": 10, "sampler_path": f"{PATH}000010"},
        {"name": "final", "batch": 20, "sampler_path": f"{PATH}final"},
    ]
    lines = [json.dumps(record) + "\n" for record in records]
    (folder / "checkpoints.jsonl").write_text("".join(lines))
    return folder


def test_models_key_settings_make_a_model_with_its_options(run: Path) -> None:
    last = run / "checkpoints" / "r" / "sampler_weights" / "final"
    own = "http://own"
    given = {
        "user": "evert-tiny", "user.temperature": "0.5", "user.max_tokens": "9",
        "temperature": "evert-tiny", "a.b": "evert-tiny",  # named like an option; a name with a dot
        "judge": str(run), "early": f"{run}@10", "other": "tinker://a/weights/b",
        "critic": "https://host:8000/v1#org/model", "critic.api_key_env": "HOST_KEY",
        "critic.timeout": "9", "gpt-5.2": "openai:gpt-5-mini", "gpt-5.2.temperature": "0",
        "mine": "openai:m", "mine.base_url": "http://127.0.0.1:1/v1",
    }  # fmt: skip
    assert frozen_models(given, own) == {
        "user": TinkerModel("evert-tiny", temperature=0.5, max_tokens=9, base_url=own),
        "temperature": TinkerModel("evert-tiny", base_url=own),
        "a.b": TinkerModel("evert-tiny", base_url=own),
        "judge": TinkerModel("evert-tiny-20q", str(last), "qwen3", base_url=own),
        "early": TinkerModel("evert-tiny-20q", f"{PATH}000010", "qwen3", base_url=own),
        "other": TinkerModel(None, "tinker://a/weights/b", base_url=own),
        "critic": RemoteModel("org/model", "https://host:8000/v1", "HOST_KEY", 9.0),
        "gpt-5.2": RemoteModel("gpt-5-mini", temperature=0.0),
        "mine": RemoteModel("m", "http://127.0.0.1:1/v1"),
    }


def test_mappings_may_be_given_as_a_whole_or_by_key() -> None:
    examples = {"limits": "limits.max_turns=20"}
    limits = RolloutLimits(max_turns=3)
    for given in ({"limits.max_turns": 3}, {"limits": {"max_turns": 3}}, {"limits": limits}):
        assert gather({"steps": 1, **given}, examples) == {"steps": 1, "limits": {"max_turns": 3}}
    assert gather({"limits": None}, examples) == {"limits": {}}
    named = {"gpt-4.1": "evert-tiny", "judge": "runs/x"}
    assert gather({"models": named}, {"models": ""}) == {"models": named}


def test_each_engine_refuses_models_that_only_the_other_one_supports(
    run: Path, tiny_model: str
) -> None:
    here = frozen_models({"a": "evert-tiny", "b": str(run), "c": "openai:m"})
    check_frozen(here, embedded=True)
    with pytest.raises(RecipeError, match=r"models\.d is stored on a Tinker service \(tinker:"):
        check_frozen({"d": TinkerModel("evert-tiny", f"{PATH}x")}, embedded=True)
    with pytest.raises(ModelNotFoundError, match="does not exist"):
        check_frozen({"d": TinkerModel("./nowhere", renderer_name="qwen3")}, embedded=True)
    with pytest.raises(RendererMismatchError, match="has no chat template"):
        check_frozen({"d": TinkerModel(tiny_model)}, embedded=True)
    check_frozen({"a": TinkerModel("Qwen/Qwen3-8B"), "b": RemoteModel("m")}, embedded=False)
    for named in ("evert-tiny", str(run)):
        with pytest.raises(RecipeError, match=r"models\.judge is on this machine .*#MODEL\.$"):
            check_frozen(frozen_models({"judge": named}), embedded=False)


def test_hosts_of_endpoints_stay_reachable_and_weights_need_an_engine(tmp_path: Path) -> None:
    named = {"critic": "https://critic.invalid:8000/v1#m", "other": "openai:m"}
    settings = read_train_settings({"env": "identity", "device": "cpu", "models": named}, {})
    models = frozen_models(settings.models)
    with running_engine(EngineChoice("embedded", "a reason"), settings, tmp_path, models):
        refused = map(network_is_refused, ("critic.invalid", "api.openai.com", "other.invalid"))
        assert [*refused] == [False, False, True]
    assert not needs_engine(frozen_models(named) | {"s": ScriptedPolicy(["x"])})
    assert needs_engine(frozen_models({**named, "user": "evert-tiny"}))


def test_a_frozen_run_is_pinned_to_its_step_and_stays_pinned_on_resuming(run: Path) -> None:
    given = {"judge": str(run), "judge.temperature": "0", "user": "evert-tiny"}
    assert pin_steps(given, {}) == {**given, "judge": f"{run}@20"}
    assert pin_steps(given, {"judge": f"{run}@10"}) == {**given, "judge": f"{run}@10"}
    assert pin_steps({"judge": f"{run}@10"}, {"judge": f"{run}@20"}) == {"judge": f"{run}@10"}
    with pytest.raises(ModelNameError, match="no run or model"):
        pin_steps({"judge": "runs/none"}, {})


def identity(given: dict[str, str]) -> list[Any]:
    return fingerprint(given, read_models(given))


def test_frozen_weights_that_have_changed_have_a_different_identity(run: Path) -> None:
    given = {"judge": str(run), "judge.temperature": "0"}
    before = identity(given)
    file = run / "checkpoints" / "r" / "sampler_weights" / "final" / "model.safetensors"
    assert identity({**given, "judge": f"{run}@20"}) == before
    assert identity({**given, "judge.temperature": "1"}) != before
    file.write_bytes(b"after thirty")
    assert identity(given) != before
    assert identity({"a": "openai:m"}) != identity({"a": "openai:n"})


def test_every_env_option_is_a_training_setting_with_its_default() -> None:
    shared, plain = chz.chz_fields(EpisodeSettings).keys(), EpisodeSettings()
    assert EnvOptions.__annotations__.keys() - {"renderer", "models"} == shared - {"seats"}
    for field in fields(EnvSettings):
        if field.name in shared and (value := getattr(plain, field.name)) not in ({}, ()):
            assert value == getattr(EnvSettings(), field.name), field.name
    assert (shared | MAPPINGS.keys()) - {"cookbook", "tasks", "chat_template"} <= {
        *SETTING_OF.values()
    }


class Bringing:
    """An agent with its own options."""

    env_options: ClassVar[Any] = {
        "policy_names": "mine",
        "limits": RolloutLimits(max_turns=3),
        "models": {"judge": ScriptedPolicy(lambda prompt: "yes")},
        "agent_timeout": 7.0,
        "context_length": 88,
    }

    async def __call__(self, client: Any, task: str) -> float:
        return await asks_a_judge(client, task)


def test_a_run_uses_the_agents_own_options() -> None:
    settings = read_train_settings({"agent": Bringing(), "train_tasks": ["tree"]}, {})
    for of_model, holds in ((99, 88), (77, 77), (None, 88)):
        made = cookbook_config(settings, Path("run"), embedded=True, context_length=of_model)
        dataset, _ = asyncio.run(made.dataset_builder())
        [group] = dataset.get_batch(0)
        env: Any = asyncio.run(group.make_envs())[0]
        assert env.rollout_limits.max_turns == 3
        assert env._settings.names == ("mine",)
        assert (env._settings.agent_timeout, env._settings.context_length) == (7.0, holds)


def test_values_are_parsed_and_unset_options_are_left_to_the_agent() -> None:
    given = {
        "env": "identity", "policy_names": "gpt-4o,*", "seats": "a,b", "limits.max_turns": "3",
        "parse_error_policy.max_consecutive": "2", "format_retries": "0", "context_length": "99",
        "on_truncation": "end", "on_agent_error": "-1", "limits.rollout_timeout_seconds": "1.5",
    }  # fmt: skip
    assert env_options(EpisodeSettings(), {}) == {}
    assert env_options(read_train_settings(given, {}), {}) == {
        "policy_names": ("gpt-4o", "*"), "format_retries": 0, "context_length": 99,
        "limits": RolloutLimits(max_turns=3, rollout_timeout_seconds=1.5),
        "parse_error_policy": ParseErrorPolicy(max_consecutive=2),
        "on_truncation": "end", "on_agent_error": -1.0,
    }  # fmt: skip


def test_each_option_of_a_recipe_can_be_overridden(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "limited_game.py").write_text(
        "from evert import Game\n"
        "GAME = Game('my/Limited-v0', agent='a:b', train_tasks='a:c', recipe={\n"
        "    'limits': {'max_turns': 3, 'max_tool_calls': 4}, 'models': {'user': 'evert-tiny'},\n"
        "    'policy_names': ('gpt-4o',)})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    given = {"env": "limited_game", "limits.max_turns": "9"}
    trained = read_train_settings(given, {})
    evaluated = read_evaluate_settings({**given, "models": "evert-tiny"})
    for settings in (trained, evaluated):
        assert settings.limits == {"max_turns": "9", "max_tool_calls": 4}
        assert settings.policy_names == ("gpt-4o",)
    assert trained.models == evaluated.frozen == {"user": "evert-tiny"}


async def asks_a_judge(client: Any, task: str) -> float:
    reply = await ask(client, task)
    return float(await ask(client, reply or "nothing", model="judge") == "yes")


class Locked:
    """An agent that cannot be copied, like most agents that hold a client."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    async def __call__(self, client: Any, task: str) -> float:
        with self.lock:
            return await asks_a_judge(client, task)


def test_a_model_object_is_used_and_must_be_passed_again_to_resume(tmp_path: Path) -> None:
    judge = ScriptedPolicy(lambda prompt: "yes")
    again: dict[str, Any] = {
        "log_path": tmp_path / "run", "device": "cpu", "batch_size": 2, "group_size": 2,
        "max_tokens": 4, "limits": RolloutLimits(max_turns=5), "console": Console(quiet=True),
    }  # fmt: skip
    run = evert.train(asks_a_judge, ["tree", "sea"], steps=1, models={"judge": judge}, **again)
    assert len(judge.prompts) == 4
    assert run.steps()[-1]["env/all/reward/total"] == 1.0
    about = (run.read_json("run.json") or {})["settings"]
    assert about["models"] == {"judge": "<a ScriptedPolicy>"}
    assert about["limits"] == {"max_turns": "5"}
    with pytest.raises(RecipeError, match=r"models\.judge was <a ScriptedPolicy>, a Python o"):
        evert.train(asks_a_judge, ["tree", "sea"], steps=2, **again)
    evert.train(asks_a_judge, ["tree", "sea"], steps=2, models={"judge": judge}, **again)
    assert len(run.steps()) == 2


def test_objects_that_cannot_be_copied_are_recorded_by_their_class() -> None:
    agent, judge = Locked(), ScriptedPolicy(lambda prompt: "yes")
    beside: Any = {"models": {"judge": judge, "user": TinkerModel("evert-tiny")}}
    builder = AgentDatasetBuilder(agent=agent, train_tasks=["tree"], env_options=beside)
    written = dump_config(builder)
    models = written["env_options"]["models"]
    assert (written["agent"], models["judge"]) == ("<a Locked>", "<a ScriptedPolicy>")
    assert models["user"]["base_model"] == "evert-tiny"
    group: Any = asyncio.run(builder())[0].get_batch(0)[0]
    assert group.agent is agent
    assert group.options["models"]["judge"] is judge


@pytest.mark.parametrize(("given", "expected"), [({}, 8192), ({"context_length": 99}, 99)])
def test_a_builder_takes_the_context_length_from_the_engine_in_this_process(
    tmp_path: Path, given: Any, expected: int
) -> None:
    builder = AgentDatasetBuilder(agent=asks_a_judge, train_tasks=["tree"], env_options=given)
    with embedded_engine(tmp_path, device="cpu"):
        here, _ = asyncio.run(builder())
    without, _ = asyncio.run(builder())
    groups: Any = [*here.get_batch(0), *without.get_batch(0)]
    lengths = [group.options.get("context_length") for group in groups]
    assert lengths == [expected, given.get("context_length")]


AGENTS = '''
"""Agents as others write them."""

import openai

from evert import Outcome
from tests.kit import ask

TASKS = ["tree", "river"]
HELD_OUT = ["sea", "lake"]


def named(task):
    """Builds its own client, calls its models by their names, and has a simulated user."""
    client = openai.OpenAI(api_key="none", max_retries=0)

    def said(model, text):
        messages = [{"role": "user", "content": text}]
        reply = client.chat.completions.create(model=model, messages=messages)
        return reply.choices[0].message.content

    wish = said("simulator", f"Let's play a game. Say you are {len(task)}.")
    text = said("gpt-4o", wish) + said("gpt-4o-mini", task)
    return Outcome(text.count("e") / 10, metrics={"wish": len(wish)})


async def debate(client, task):
    """Two trained roles and a frozen judge."""
    said = await ask(client.seat("pro"), task)
    answered = await ask(client.seat("con"), f"{task} {said}")
    verdict = await ask(client, answered, model="judge")
    return {"pro": float("e" in said), "con": float(len(verdict) > 3)}
'''
SMALL = [
    "train_tasks=whole_agents:TASKS", "device=cpu", "steps=2", "batch_size=2", "group_size=2",
    "max_tokens=8", "eval_every=0", "samples=1", "test_group_size=2",
]  # fmt: skip
NAMED = [
    "agent=whole_agents:named", "test_tasks=whole_agents:HELD_OUT",
    "policy_names=gpt-4o,gpt-4o-mini", "models.simulator=evert-tiny",
    "models.simulator.max_tokens=6", "limits.max_turns=9",
]  # fmt: skip
"""The arguments that select an agent; they are the same for every command."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Create a working directory with a module of agents."""
    path = tmp_path_factory.mktemp("home")
    (path / "whole_agents.py").write_text(AGENTS)
    with chdir(path), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path)
        yield path
    sys.modules.pop("whole_agents", None)


@pytest.fixture(scope="module")
def named(home: Path) -> RunFolder:
    """Train the agent with hard-coded model names."""
    assert train.main([*SMALL, *NAMED, "log_path=runs/named"]) == 0
    return RunFolder(Path("runs/named"))


def config(folder: RunFolder) -> dict[str, Any]:
    found = folder.read_json("config.json") or {}
    return dict(found["dataset_builder"])


def rows(file: str) -> list[dict[str, str]]:
    with Path(file).open() as lines:
        return [*csv.DictReader(lines)]


def played(folder: str) -> list[EpisodeResult]:
    return [*EpisodeLog(Path(folder)).by_key.values()]


def test_an_agent_with_hard_coded_model_names_is_trained_with_a_frozen_model(
    named: RunFolder,
) -> None:
    steps = named.steps()
    assert len(steps) == 2
    assert {step["env/all/turns_per_episode"] for step in steps} == {
        2
    }  # calls to the simulated user are not turns
    assert all(step["env/all/wish"] > 0 for step in steps)
    settings = (named.read_json("run.json") or {})["settings"]  # as passed on the command line
    assert settings["models"] == {"simulator": "evert-tiny", "simulator.max_tokens": "6"}
    assert settings["policy_names"] == ["gpt-4o", "gpt-4o-mini"]
    assert settings["limits"] == {"max_turns": "9"}
    options = config(named)["env_options"]
    model = options["models"]["simulator"]
    assert (model["base_model"], model["max_tokens"]) == ("evert-tiny", 6)
    assert (options["context_length"], config(named)["limits"]["max_turns"]) == (8192, 9)


def test_an_evaluation_gives_the_scores_of_training(named: RunFolder, capsys: Shown) -> None:
    arguments = [*NAMED, "models=runs/named", "split=test", "device=cpu"]
    assert evaluate.main([*arguments, "out=warm", "seeds=2"]) == 0
    assert evaluate.main([*arguments, "out=cold", "seeds=1", "temperature=0"]) == 0
    after = named.after or {}
    for out, how in (("warm", "temperature_1"), ("cold", "greedy")):
        [row] = rows(f"{out}/scores.csv")
        assert row["episodes"] == str(after[how]["episodes"])
        for name in ("reward", "success", "low", "high"):
            assert float(row[name]) == pytest.approx(after[how][name], abs=1e-4)
    assert {episode.turns for episode in played("warm")} == {2}
    assert evaluate.main(["out=warm"]) == 0  # resumes with all recorded settings
    assert len(played("warm")) == 4
    capsys.readouterr()
    assert evaluate.main([*arguments, "models.simulator=evert-tiny-20q", "out=warm"]) == 1
    assert "frozen: {'simulator': 'evert-tiny'" in capsys.readouterr().err


def test_an_endpoint_under_evaluation_plays_with_the_frozen_models(
    home: Path, capsys: Shown
) -> None:
    arguments = [*NAMED, "models=http://127.0.0.1:9/v1#other", "split=test", "seeds=1"]
    assert evaluate.main([*arguments, "out=endpoint"]) == 1
    shown = capsys.readouterr()
    assert "other at http://127.0.0.1:9/v1" in shown.out
    assert "APIConnectionError" in shown.err  # only the policy's call failed


def test_a_sweep_takes_the_same_settings_and_searches_frozen_models(home: Path) -> None:
    words = dict(each.split("=", 1) for each in (*SMALL, *NAMED))
    searched = read_plan({**words, "models.simulator": "evert-tiny,evert-tiny-20q"})
    assert ([*searched.space], searched.trials) == (["models.simulator"], 2)
    [*names] = choices(searched.space["models.simulator"])
    chosen = train.parse(searched.arguments({"models.simulator": names[1]}))
    other = {"models": {"simulator": "evert-tiny-20q", "simulator.max_tokens": "6"}}
    assert chosen == chz.replace(train.parse([*SMALL, *NAMED]), **other)


DEBATE = ["agent=whole_agents:debate", "test_tasks=whole_agents:HELD_OUT", "seats=pro,con"]


def test_two_seats_are_trained_with_a_frozen_run(named: RunFolder, capsys: Shown) -> None:
    words = [*DEBATE, "models.judge=runs/named", "models.judge.temperature=0"]
    words += ["models.judge.max_tokens=4"]

    assert train.main([*SMALL, *words, "log_path=runs/debate"]) == 0

    assert "\nfrozen: judge is runs/named@2\n" in capsys.readouterr().out
    run = RunFolder(Path("runs/debate"))
    assert {f"env/all/seat/{seat}/reward" for seat in ("pro", "con")} <= run.steps()[-1].keys()
    judge = config(run)["env_options"]["models"]["judge"]
    assert Path(judge["model_path"]).is_relative_to(Path("runs/named/checkpoints").resolve())
    assert (run.read_json("run.json") or {})["settings"]["models"]["judge"] == "runs/named@2"

    evaluating = [*words, "models=runs/debate", "split=test", "seeds=1", "temperature=0"]
    assert evaluate.main([*evaluating, "out=debate"]) == 0
    for episode in played("debate"):
        shares = [episode.metrics[f"seat/{seat}/reward"] for seat in ("pro", "con")]
        assert episode.reward == sum(shares) / 2
        assert episode.turns == 2
    after = (run.after or {})["greedy"]["reward"]
    [row] = rows("debate/scores.csv")
    assert float(row["reward"]) == pytest.approx(after, abs=1e-4)

    assert train.main(["log_path=runs/named", "steps=3"]) == 0  # train the judge for another step
    assert train.main([*SMALL, *words, "log_path=runs/debate", "steps=3"]) == 0
    settings = (run.read_json("run.json") or {})["settings"]
    assert settings["models"]["judge"] == "runs/named@2"
    assert len(run.steps()) == 3


def test_a_frozen_endpoint_answers_and_its_key_is_not_written(
    home: Path, monkeypatch: Patch
) -> None:
    asked: set[tuple[str, str]] = set()

    def wants_tea(body: dict[str, Any], key: str) -> dict[str, Any]:
        asked.add((body["model"], key))
        return {"role": "assistant", "content": "Some tea."}

    monkeypatch.setenv("GUEST_KEY", "s3cret")
    words = [each for each in NAMED if not each.startswith("models.")]
    with chat_endpoint(wants_tea) as address:
        guest = [f"models.simulator={address}#guest", "models.simulator.api_key_env=GUEST_KEY"]
        assert train.main([*SMALL, *words, *guest, "steps=1", "log_path=runs/guest"]) == 0
    assert asked == {("guest", "Bearer s3cret")}
    run = RunFolder(Path("runs/guest"))
    assert run.steps()[-1]["env/all/wish"] == len("Some tea.")
    model = config(run)["env_options"]["models"]["simulator"]
    assert (model["model"], model["api_key_env"]) == ("guest", "GUEST_KEY")
    files = [path for path in run.path.rglob("*") if path.is_file()]
    assert not [path for path in files if b"s3cret" in path.read_bytes()]


async def saved_weights() -> str:
    client = await tinker.ServiceClient().create_lora_training_client_async("evert-tiny-20q")
    return str((await (await client.save_weights_for_sampler_async("kept"))).path)


def test_a_service_works_the_same_way_and_its_weights_may_be_a_frozen_model(
    home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Shown
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-dummy")
    service = ["engine=service", "base_url=http://service.invalid", "log_path=runs/service"]
    words = [each for each in NAMED if each != "models.simulator=evert-tiny"]
    # The embedded engine plays the role of the service. It has already replaced the SDK's clients.
    with embedded_engine(tmp_path / "store", device="cpu"):
        path = asyncio.run(saved_weights())
        arguments = [*SMALL, *words, *service, f"models.simulator={path}", "steps=1"]
        assert train.main(arguments) == 0
    assert "engine: http://service.invalid (TINKER_API_KEY is set)" in capsys.readouterr().out
    run = RunFolder(Path("runs/service"))
    assert (run.read_json("run.json") or {})["engine"]["engine"] == "service"
    assert not (run.path / "checkpoints").exists()
    assert run.steps()[-1]["env/all/wish"] > 0
    options = config(run)["env_options"]
    model = options["models"]["simulator"]
    assert (model["model_path"], model["base_url"]) == (path, "http://service.invalid")
    assert options["context_length"] == 8192
