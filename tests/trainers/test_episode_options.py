"""What an agent needs of its episodes, in the same words for training, evaluation and sweeps.

1. An agent that builds its own client and names its own models is trained, beside a frozen one.
2. It is evaluated in the same words, and scores as its training says it does.
3. It is swept in the same words; frozen models can be searched, too.
4. An agent with two trained roles is trained and evaluated; a run is a frozen model of it, which a
   resumed run keeps though that run went on.
5. An endpoint answers beside the policy, and its key is written nowhere; so do weights of the
   service that a run is on.
"""

import asyncio
import csv
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import chz
import pytest
import tinker
from tests.trainers.conftest import chat_endpoint

from evert.trainers.commands import evaluate, train
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.episodes.playing import Episode, EpisodeLog
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.sweeping.study import choices, read_plan

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
    "max_tokens=8", "eval_every=0", "samples=1",
]  # fmt: skip
NAMED = [
    "agent=whole_agents:named", "test_tasks=whole_agents:HELD_OUT",
    "policy_names=gpt-4o,gpt-4o-mini", "models.simulator=evert-tiny",
    "models.simulator.max_tokens=6", "limits.max_turns=9",
]  # fmt: skip
"""The words for an agent, whichever the command."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the agents in it, to work in."""
    path = tmp_path_factory.mktemp("home")
    (path / "whole_agents.py").write_text(AGENTS)
    with chdir(path), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path)
        yield path
    sys.modules.pop("whole_agents", None)


@pytest.fixture(scope="module")
def named(home: Path) -> RunFolder:
    """A run of the agent that names its own models."""
    assert train.main([*SMALL, *NAMED, "log_path=runs/named"]) == 0
    return RunFolder(Path("runs/named"), resumed=True)


def config(folder: RunFolder) -> dict[str, Any]:
    found = folder.read_json("config.json") or {}
    return dict(found["dataset_builder"])


def rows(file: str) -> list[dict[str, str]]:
    with Path(file).open() as lines:
        return [*csv.DictReader(lines)]


def played(folder: str) -> list[Episode]:
    return [*EpisodeLog(Path(folder)).by_key.values()]


# -- 1. training ---------------------------------------------------------------------------------


def test_an_agent_that_names_its_own_models_is_trained_beside_a_frozen_one(
    named: RunFolder,
) -> None:
    steps = named.steps()

    assert len(steps) == 2
    assert {step["env/all/turns_per_episode"] for step in steps} == {2}  # the user's are none
    assert all(step["env/all/wish"] > 0 for step in steps)


def test_what_a_run_was_given_is_in_its_folder(named: RunFolder) -> None:
    settings = (named.read_json("run.json") or {})["settings"]

    assert settings["models"] == {"simulator": "evert-tiny", "simulator.max_tokens": "6"}
    assert settings["policy_names"] == ["gpt-4o", "gpt-4o-mini"]
    assert settings["limits"] == {"max_turns": "9"}
    options = config(named)["env_options"]
    assert options["context_length"] == 8192
    assert options["models"]["simulator"]["base_model"] == "evert-tiny"
    assert options["models"]["simulator"]["max_tokens"] == 6
    assert config(named)["limits"]["max_turns"] == 9


# -- 2. evaluating -------------------------------------------------------------------------------


def test_it_is_evaluated_in_the_same_words_and_scores_as_its_training_says(
    named: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*NAMED, "models=runs/named", "split=test", "seeds=1", "device=cpu"]

    assert evaluate.main([*arguments, "out=warm"]) == 0
    assert evaluate.main([*arguments, "out=cold", "temperature=0"]) == 0

    after = named.after or {}
    for out, how in (("warm", "temperature_1"), ("cold", "greedy")):
        [row] = rows(f"{out}/scores.csv")
        assert float(row["reward"]) == pytest.approx(after[how]["reward"], abs=1e-4)
    assert {episode.turns for episode in played("warm")} == {2}

    assert evaluate.main(["out=warm"]) == 0  # goes on, with all that it was given
    assert len(played("warm")) == 2
    capsys.readouterr()
    assert evaluate.main([*arguments, "models.simulator=evert-tiny-20q", "out=warm"]) == 1
    assert "frozen: {'simulator': 'evert-tiny'" in capsys.readouterr().err


def test_who_plays_without_weights_meets_the_frozen_models_too(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*NAMED, "models=http://127.0.0.1:9/v1#other", "split=test", "seeds=1"]

    assert evaluate.main([*arguments, "out=endpoint"]) == 1

    shown = capsys.readouterr()
    assert "other at http://127.0.0.1:9/v1" in shown.out
    assert "APIConnectionError" in shown.err  # the policy's; the simulated user answered


# -- 3. sweeping ---------------------------------------------------------------------------------


def test_it_is_swept_in_the_same_words_and_frozen_models_are_searched(home: Path) -> None:
    words = dict(each.split("=", 1) for each in (*SMALL, *NAMED))
    searched = read_plan({**words, "models.simulator": "evert-tiny,evert-tiny-20q"})

    assert ([*searched.space], searched.trials) == (["models.simulator"], 2)
    [*names] = choices(searched.space["models.simulator"])
    chosen = train.parse(searched.arguments({"models.simulator": names[1]}))
    other = {"models": {"simulator": "evert-tiny-20q", "simulator.max_tokens": "6"}}
    assert chosen == chz.replace(train.parse([*SMALL, *NAMED]), **other)


# -- 4. seats, and runs as frozen models ---------------------------------------------------------

DEBATE = ["agent=whole_agents:debate", "test_tasks=whole_agents:HELD_OUT", "seats=pro,con"]


def test_an_agent_with_two_roles_is_trained_and_evaluated_beside_a_run(
    named: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*DEBATE, "models.judge=runs/named", "models.judge.temperature=0"]
    words += ["models.judge.max_tokens=4"]

    assert train.main([*SMALL, *words, "log_path=runs/debate"]) == 0

    assert "\nfrozen: judge is runs/named@2\n" in capsys.readouterr().out
    run = RunFolder(Path("runs/debate"), resumed=True)
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

    assert train.main(["log_path=runs/named", "steps=3"]) == 0  # the judge is trained further
    assert train.main([*SMALL, *words, "log_path=runs/debate", "steps=3"]) == 0
    settings = (run.read_json("run.json") or {})["settings"]
    assert settings["models"]["judge"] == "runs/named@2"
    assert len(run.steps()) == 3


# -- 5. endpoints, and a service -----------------------------------------------------------------


def test_an_endpoint_answers_beside_the_policy_and_its_key_is_written_nowhere(
    home: Path, monkeypatch: pytest.MonkeyPatch
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
    run = RunFolder(Path("runs/guest"), resumed=True)
    assert run.steps()[-1]["env/all/wish"] == len("Some tea.")
    model = config(run)["env_options"]["models"]["simulator"]
    assert (model["model"], model["api_key_env"]) == ("guest", "GUEST_KEY")
    files = [path for path in run.path.rglob("*") if path.is_file()]
    assert not [path for path in files if b"s3cret" in path.read_bytes()]


async def saved_weights() -> str:
    client = await tinker.ServiceClient().create_lora_training_client_async("evert-tiny-20q")
    return str((await (await client.save_weights_for_sampler_async("kept"))).path)


def test_weights_of_the_service_that_a_run_is_on_answer_beside_its_policy(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-dummy")
    service = ["engine=service", "base_url=http://service.invalid", "log_path=runs/service"]
    words = [each for each in NAMED if each != "models.simulator=evert-tiny"]
    # The embedded engine stands in for the service: it is already in place of the SDK's clients.
    with embedded_engine(tmp_path / "store", device="cpu"):
        path = asyncio.run(saved_weights())
        arguments = [*SMALL, *words, *service, f"models.simulator={path}", "steps=1"]
        assert train.main(arguments) == 0

    run = RunFolder(Path("runs/service"), resumed=True)
    assert run.steps()[-1]["env/all/wish"] > 0
    options = config(run)["env_options"]
    model = options["models"]["simulator"]
    assert (model["model_path"], model["base_url"]) == (path, "http://service.invalid")
    assert options["context_length"] == 8192
