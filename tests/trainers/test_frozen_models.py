"""Models beside the policy, named in settings; and an episode's options as settings.

1. A name becomes a model: a base, weights of a run, an endpoint; options follow the name.
2. The engine that a run is on must have the weights; endpoints' hosts stay reachable.
3. A run that is frozen is pinned to its step.
4. Every option of an Env is a setting, with the default it has there; recipes may set them.
5. What was given from Python is a model as it is, and only Python can give it again.

What is wrong is said by the key that was typed: ``test_refusals.py``.
"""

import asyncio
import json
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import chz
import pytest
from rich.console import Console
from tests.kit import ask
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits
from tinker_cookbook.utils.ml_log import dump_config

import evert
from evert import AgentDatasetBuilder, RemoteModel, ScriptedPolicy, TinkerModel, embedded_engine
from evert.bridge.env.options import EnvOptions, EnvSettings
from evert.bridge.errors import RendererMismatchError
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
    pinned,
)
from evert.trainers.config.model_names import ModelNameError
from evert.trainers.config.train import MAPPINGS, read_train_settings
from evert.trainers.engine.common.errors import ModelNotFoundError
from evert.trainers.engine.common.network import network_is_refused
from evert.trainers.training.cookbook import cookbook_config, own_settings

PATH = "tinker://r/sampler_weights/"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The files of a run that tell where its weights are, and those of its last ones."""
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


# -- 1. names ------------------------------------------------------------------------------------


def test_a_name_becomes_a_model_with_the_options_that_follow_it(run: Path) -> None:
    last = run / "checkpoints" / "r" / "sampler_weights" / "final"
    own = "http://own"
    given = {
        "user": "evert-tiny", "user.temperature": "0.5", "user.max_tokens": "9",
        "temperature": "evert-tiny", "a.b": "evert-tiny",  # names like an option, or with dots
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


def test_mappings_are_given_a_key_at_a_time() -> None:
    examples = {"limits": "limits.max_turns=20"}
    limits = RolloutLimits(max_turns=3)

    for given in ({"limits.max_turns": 3}, {"limits": {"max_turns": 3}}, {"limits": limits}):
        assert gather({"steps": 1, **given}, examples) == {"steps": 1, "limits": {"max_turns": 3}}
    assert gather({"limits": None}, examples) == {"limits": {}}
    named = {"gpt-4.1": "evert-tiny", "judge": "runs/x"}
    assert gather({"models": named}, {"models": ""}) == {"models": named}


# -- 2. the engine -------------------------------------------------------------------------------


def test_the_embedded_engine_has_what_is_on_this_machine(run: Path, tiny_model: str) -> None:
    here = frozen_models({"a": "evert-tiny", "b": str(run), "c": "openai:m"})

    check_frozen(here, embedded=True)
    with pytest.raises(RecipeError, match=r"models\.d are weights on a Tinker service \(tinker:"):
        check_frozen({"d": TinkerModel("evert-tiny", f"{PATH}x")}, embedded=True)
    with pytest.raises(ModelNotFoundError, match="No folder"):
        check_frozen({"d": TinkerModel("./nowhere", renderer_name="qwen3")}, embedded=True)
    with pytest.raises(RendererMismatchError, match="has no chat template"):
        check_frozen({"d": TinkerModel(tiny_model)}, embedded=True)


def test_a_service_has_its_own_models_only(run: Path) -> None:
    check_frozen({"a": TinkerModel("Qwen/Qwen3-8B"), "b": RemoteModel("m")}, embedded=False)
    for named in ("evert-tiny", str(run)):
        with pytest.raises(RecipeError, match=r"models\.judge is on this machine .*#MODEL\.$"):
            check_frozen(frozen_models({"judge": named}), embedded=False)


def test_the_hosts_of_endpoints_stay_reachable_and_weights_need_an_engine(tmp_path: Path) -> None:
    named = {"critic": "https://critic.invalid:8000/v1#m", "other": "openai:m"}
    settings = read_train_settings({"env": "identity", "device": "cpu", "models": named}, {})

    with running_engine(EngineChoice("embedded", "a reason"), settings, tmp_path):
        refused = map(network_is_refused, ("critic.invalid", "api.openai.com", "other.invalid"))
        assert [*refused] == [False, False, True]
    assert not needs_engine(frozen_models(named) | {"s": ScriptedPolicy(["x"])})
    assert needs_engine(frozen_models({**named, "user": "evert-tiny"}))


# -- 3. the same weights again -------------------------------------------------------------------


def test_a_run_is_pinned_to_its_step_and_a_resumed_run_keeps_it(run: Path) -> None:
    given = {"judge": str(run), "judge.temperature": "0", "user": "evert-tiny"}

    assert pinned(given, {}) == {**given, "judge": f"{run}@20"}
    assert pinned(given, {"judge": f"{run}@10"}) == {**given, "judge": f"{run}@10"}
    assert pinned({"judge": f"{run}@10"}, {"judge": f"{run}@20"}) == {"judge": f"{run}@10"}
    with pytest.raises(ModelNameError, match="no run and no model"):
        pinned({"judge": "runs/none"}, {})


def test_frozen_weights_that_changed_are_other_weights(run: Path) -> None:
    given = {"judge": str(run), "judge.temperature": "0"}
    before = fingerprint(given)
    file = run / "checkpoints" / "r" / "sampler_weights" / "final" / "model.safetensors"

    assert fingerprint({**given, "judge": f"{run}@20"}) == before
    assert fingerprint({**given, "judge.temperature": "1"}) != before
    file.write_bytes(b"after thirty")
    assert fingerprint(given) != before
    assert fingerprint({"a": "openai:m"}) != fingerprint({"a": "openai:n"})


# -- 4. options as settings ----------------------------------------------------------------------


def test_every_option_of_an_env_is_a_setting_with_the_default_it_has_there() -> None:
    shared = chz.chz_fields(EpisodeSettings).keys()
    plain = EpisodeSettings()

    assert EnvOptions.__annotations__.keys() - {"renderer", "models"} == shared - {"seats"}
    for field in fields(EnvSettings):
        if field.name in shared and (value := getattr(plain, field.name)) not in ({}, ()):
            assert value == getattr(EnvSettings(), field.name), field.name


class Bringing:
    """An agent that knows what it needs."""

    env_options: ClassVar[Any] = {
        "policy_names": "mine",
        "limits": RolloutLimits(max_turns=3),
        "models": {"judge": ScriptedPolicy(lambda prompt: "yes")},
        "agent_timeout": 7.0,
    }

    async def __call__(self, client: Any, task: str) -> float:
        return await asks_a_judge(client, task)


def test_a_run_keeps_to_what_an_agent_brings_itself() -> None:
    settings = read_train_settings({"agent": Bringing(), "train_tasks": ["tree"]}, {})
    made = cookbook_config(settings, Path("run"), embedded=True, context_length=99)
    dataset, _ = asyncio.run(made.dataset_builder())
    [group] = dataset.get_batch(0)
    env: Any = asyncio.run(group.make_envs())[0]

    assert env.rollout_limits.max_turns == 3
    assert env._settings.names == ("mine",)
    assert (env._settings.agent_timeout, env._settings.context_length) == (7.0, 99)


def test_training_fills_every_option_in_from_its_setting() -> None:
    wanted = chz.chz_fields(EpisodeSettings).keys() | MAPPINGS.keys()
    assert wanted - {"cookbook", "gym", "tasks"} <= {*own_settings().values()}


def test_values_are_read_as_what_they_are_and_what_was_not_set_is_left_to_the_agent() -> None:
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


def test_recipes_set_them_too_and_each_can_be_overridden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


# -- 5. from Python ------------------------------------------------------------------------------


async def asks_a_judge(client: Any, task: str) -> float:
    reply = await ask(client, task)
    return float(await ask(client, reply or "nothing", model="judge") == "yes")


def test_a_model_that_python_made_is_used_and_python_has_to_give_it_again(tmp_path: Path) -> None:
    judge = ScriptedPolicy(lambda prompt: "yes")
    path = tmp_path / "run"
    again: dict[str, Any] = {
        "log_path": path, "device": "cpu", "batch_size": 2, "group_size": 2, "max_tokens": 4,
        "limits": RolloutLimits(max_turns=5), "console": Console(quiet=True),
    }  # fmt: skip

    run = evert.train(asks_a_judge, ["tree", "sea"], steps=1, models={"judge": judge}, **again)

    assert len(judge.prompts) == 4
    assert run.steps()[-1]["env/all/reward/total"] == 1.0
    about = (run.read_json("run.json") or {})["settings"]
    assert about["models"] == {"judge": "<a ScriptedPolicy>"}
    assert about["limits"] == {"max_turns": "5"}
    with pytest.raises(RecipeError, match=r"models\.judge was <a ScriptedPolicy>, given from Py"):
        evert.train(asks_a_judge, ["tree", "sea"], steps=2, **again)
    evert.train(asks_a_judge, ["tree", "sea"], steps=2, models={"judge": judge}, **again)
    assert len(run.steps()) == 2


class Locked:
    """An agent that cannot be copied, as most that hold a client."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    async def __call__(self, client: Any, task: str) -> float:
        with self.lock:
            return await asks_a_judge(client, task)


@pytest.mark.parametrize(("given", "expected"), [({}, 8192), ({"context_length": 99}, 99)])
def test_a_builder_asks_the_engine_in_this_process_for_the_context(
    tmp_path: Path, given: Any, expected: int
) -> None:
    builder = AgentDatasetBuilder(agent=asks_a_judge, train_tasks=["tree"], env_options=given)

    with embedded_engine(tmp_path, device="cpu"):
        here, _ = asyncio.run(builder())
    without, _ = asyncio.run(builder())

    groups: Any = [*here.get_batch(0), *without.get_batch(0)]
    lengths = [group.options.get("context_length") for group in groups]
    assert lengths == [expected, given.get("context_length")]


def test_an_agent_and_a_model_that_cannot_be_copied_are_written_down_by_their_kind() -> None:
    agent, judge = Locked(), ScriptedPolicy(lambda prompt: "yes")
    beside: Any = {"models": {"judge": judge, "user": TinkerModel("evert-tiny")}}
    builder = AgentDatasetBuilder(agent=agent, train_tasks=["tree"], env_options=beside)

    written = dump_config(builder)
    dataset, _ = asyncio.run(builder())

    assert written["agent"] == "<a Locked>"
    models = written["env_options"]["models"]
    assert (models["judge"], models["user"]["base_model"]) == ("<a ScriptedPolicy>", "evert-tiny")
    group: Any = dataset.get_batch(0)[0]
    assert group.agent is agent
    assert group.options["models"]["judge"] is judge
