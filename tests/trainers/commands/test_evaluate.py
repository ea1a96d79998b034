"""``evert evaluate``, including served models. ``test_refusals.py`` covers user errors."""

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from tests.kit import Patch, Shown
from tests.trainers.kit import chat_endpoint

from evert import RemoteModel
from evert.envs.guess_number import TEST_TASKS
from evert.trainers.commands import evaluate, train
from evert.trainers.commands.serve import ServeSettings, serving
from evert.trainers.config.evaluate import EvaluateSettings
from evert.trainers.config.model_names import ModelNameError, ModelRef, find_model
from evert.trainers.config.plan import PlayingPlan, prepare
from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.common.network import network_is_refused
from evert.trainers.episodes.players import find
from evert.trainers.episodes.playing import EPISODES, EpisodeLog, EpisodeResult
from evert.trainers.rundir import folder
from evert.trainers.rundir.folder import RunFolder, named_folder
from evert.trainers.system.command import INTERRUPTED
from evert.trainers.system.files import SCORES

IDENTITY = ["env=identity", "models=evert-tiny", "device=cpu", "max_tokens=12"]


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / SCORES).open() as file:
        return list(csv.DictReader(file))


def episodes(folder: Path) -> list[EpisodeResult]:
    return [*EpisodeLog(folder).by_key.values()]


def run(*arguments: str) -> int:
    return evaluate.main(arguments)


def test_players_are_compared_and_every_episode_is_recorded(tmp_path: Path, capsys: Shown) -> None:
    out = tmp_path / "e"
    asked = ["env=twenty_questions", "models=random,oracle", "max_tasks=9", "seeds=2"]
    assert run(*asked, f"out={out}") == 0
    shown = capsys.readouterr().out
    for said in ("2 episodes per task, temperature 1", "oracle: 36 episodes in", "100.0%"):
        assert said in shown
    found = {(row["model"], row["split"], row["category"]): row for row in rows(out)}
    assert float(found["oracle", "test", ""]["success"]) == 1.0
    assert float(found["oracle", "test", ""]["questions"]) < 8
    assert float(found["random", "", ""]["success"]) < 1.0
    assert found["random", "", ""]["episodes"] == "36"
    assert float(found["oracle", "", "animal"]["success"]) == 1.0
    for figure in (evaluate.SPLITS_FIGURE, evaluate.CATEGORIES_FIGURE):
        assert (out / figure).read_bytes().startswith(b"\x89PNG")

    played = episodes(out)
    assert len({episode.key for episode in played}) == len(played) == 72
    assert {episode.split for episode in played} == {"train", "test"}
    assert all(e.success and e.transcript for e in played if e.model == "oracle")
    of = {m: {e.target for e in played if e.model == m} for m in ("random", "oracle")}
    assert of["random"] == of["oracle"]  # both play the same tasks, spread evenly
    assert len({episode.category for episode in played}) > 3


def test_evaluations_that_start_in_the_same_second_have_separate_folders(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    class Clock:
        now = staticmethod(lambda: datetime(2026, 1, 2))

    load = evaluate._contestants

    def load_while_another_starts(plan: PlayingPlan) -> Any:
        named_folder(None, "evaluations", plan.settings.name).mkdir(parents=True)
        return load(plan)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folder, "datetime", Clock)
    monkeypatch.setattr(evaluate, "_contestants", load_while_another_starts)
    assert run("env=twenty_questions", "models=oracle", "max_tasks=1", "seeds=1") == 0
    first, second = sorted(Path("evaluations").iterdir())
    assert second.name == f"{first.name}-2"
    assert (len([*first.iterdir()]), len(episodes(second))) == (0, 2)


def test_weights_on_the_embedded_engine_are_evaluated(tmp_path: Path, capsys: Shown) -> None:
    code = run(*IDENTITY, "split=test", "max_tasks=6", "seeds=3", f"out={tmp_path}/e")
    assert code == 0
    shown = capsys.readouterr().out
    assert "evert-tiny: engine: embedded on cpu, 1 thread" in shown
    played = episodes(tmp_path / "e")
    answers = [line for line in shown.splitlines() if line.startswith("evert-tiny, task ")]
    first = {e.target: e for e in reversed(played) if e.seed == 0 and e.dialogue}
    assert len(answers) == len(first) == evaluate.SHOWN
    for line in answers:
        told = first[line.removeprefix("evert-tiny, task ").partition(":")[0]]
        said = " ".join(told.dialogue[-1]["said"].split())
        assert line.endswith(f': "{said}" (reward {told.reward:g})')
    assert len(played) == 18
    assert {episode.turns for episode in played} == {1}
    assert all(0 < episode.tokens <= 12 for episode in played)
    assert len({episode.reward for episode in played}) > 1
    assert not (tmp_path / "e" / evaluate.CATEGORIES_FIGURE).exists()


def interrupt_after(episodes: int, log: Path) -> None:
    """Send Ctrl-C once this many episodes have been recorded."""
    deadline = time.monotonic() + 800
    while not log.exists() or log.read_text().count("\n") < episodes:
        assert time.monotonic() < deadline, "they never came"
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)


def test_a_resumed_evaluation_gives_the_same_table(tmp_path: Path, capsys: Shown) -> None:
    arguments = [*IDENTITY, "split=test", "max_tasks=24", "seeds=8"]
    part, whole = tmp_path / "part", tmp_path / "whole"
    waiting = threading.Thread(target=interrupt_after, args=(20, part / EPISODES), daemon=True)
    waiting.start()
    assert run(*arguments, "parallel=1", f"out={part}") == INTERRUPTED
    waiting.join()
    kept = episodes(part)
    assert 20 <= len(kept) < 192
    resume = shlex.split(capsys.readouterr().out.rpartition("To resume: ")[2])
    assert resume == ["evert", "evaluate", f"out={part}"]
    assert run(*resume[2:], "parallel=64") == 0
    assert run(*arguments, "parallel=64", f"out={whole}") == 0
    assert episodes(part)[: len(kept)] == kept
    assert rows(part) == rows(whole)


ORACLE = ["env=twenty_questions", "models=oracle", "max_tasks=3"]


def test_finished_episodes_survive_a_torn_line_and_added_models_or_seeds(
    tmp_path: Path, monkeypatch: Patch, capsys: Shown
) -> None:
    folder = tmp_path / "e"
    out, log = f"out={folder}", folder / EPISODES
    run(*ORACLE, "seeds=1", out)
    table, first = rows(folder), episodes(folder)
    log.write_text(log.read_text()[:-40])
    assert run(*ORACLE, "seeds=1", out) == 0
    assert (rows(folder), episodes(folder)) == (table, first)

    asked: list[EpisodeResult] = []

    def key(episode: EpisodeResult) -> tuple[str, str, int, int]:
        asked.append(episode)
        return episode.digest, episode.split, episode.task, episode.seed

    with monkeypatch.context() as patch:
        patch.setattr(EpisodeResult, "key", property(key))
        assert run("models=oracle,random", "seeds=2", out) == 0
    assert len(asked) <= 4 * 24  # one lookup per episode
    played = episodes(folder)
    assert played[: len(first)] == first
    assert len(played) == 6 * 2 * 2

    before = log.read_bytes()
    capsys.readouterr()
    assert run(*ORACLE, "max_tasks=5", out) == 1
    assert "max_tasks: 3 -> 5" in capsys.readouterr().err
    assert log.read_bytes() == before
    with log.open("a") as file:
        file.write('{"model": "oracle", "colour": "red"}\n')
    assert run(out) == 1
    assert "different fields than this version of evert expects" in capsys.readouterr().err


OWN_AGENT = """
TASKS = [{"word": word, "category": word[0]} for word in ("ab", "ac", "bd", "be")]
HOPELESS = TASKS[3:]

async def agent(client, task):
    if task["word"] == "be":
        raise ValueError("no such word")
    messages = [{"role": "user", "content": "Repeat: " + task["word"]}]
    reply = await client.chat.completions.create(messages=messages)
    client.metric("questions", 1)
    return 0.5 * ("a" in reply.choices[0].message.content)
"""


def test_a_users_agent_is_evaluated_and_its_failures_are_counted_and_shown(
    tmp_path: Path, monkeypatch: Patch, capsys: Shown
) -> None:
    (tmp_path / "evaluated_agent.py").write_text(OWN_AGENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = ["agent=evaluated_agent:agent", "test_tasks=evaluated_agent:TASKS", "success=0.5"]
    assert run(*own, "models=evert-tiny", "seeds=2", "max_tokens=8", "out=e") == 0
    played = episodes(tmp_path / "e")
    failed = [episode for episode in played if episode.error]
    assert len(played) == 8
    assert [episode.reward for episode in failed] == [None, None]
    assert all("no such word" in episode.error for episode in failed)
    assert any(episode.success for episode in played)
    (total,) = [row for row in rows(tmp_path / "e") if not row["category"]]
    assert (total["errors"], total["episodes"]) == ("2", "8")
    shown = capsys.readouterr().out
    assert "2 (25%)" in shown
    assert "evert-tiny: 2 of 8 episodes failed (2 agent errors)\n" in shown
    assert "most common, 2 times: ValueError: no such word\n" in shown
    assert 'evaluated_agent.py", line ' in shown
    own[1] = "test_tasks=evaluated_agent:HOPELESS"
    assert run(*own, "models=evert-tiny", "seeds=1", "out=f") == 1
    assert "1 of 1 episodes failed" in capsys.readouterr().out


def test_identical_weights_are_played_only_once(
    finished: RunFolder, tmp_path: Path, capsys: Shown
) -> None:
    models = f"models={finished.path},{finished.path}@3"
    arguments = ["env=guess_number", models, "split=test", "max_tasks=2", "seeds=1"]
    assert run(*arguments, f"out={tmp_path}/e") == 0
    shown = capsys.readouterr().out
    assert "plays evert.envs.guess_number:guess_number_agent, but was trained with" in shown
    played = episodes(tmp_path / "e")
    assert len(played) == 2
    assert {episode.target for episode in played} <= set(map(str, TEST_TASKS))
    first, second = rows(tmp_path / "e")
    assert second.pop("model") == first.pop("model") + "@3"
    assert first == second


def test_a_run_that_was_trained_further_is_played_again(copied: RunFolder, tmp_path: Path) -> None:
    arguments = ["env=identity", f"models={copied.path}", "split=test", "seeds=1", "max_tasks=6"]
    assert run(*arguments, f"out={tmp_path}/e") == 0
    first = episodes(tmp_path / "e")
    assert train.main([f"log_path={copied.path}", "steps=4"]) == 0
    assert run(*arguments, f"out={tmp_path}/e") == 0
    both = episodes(tmp_path / "e")
    (row,) = rows(tmp_path / "e")
    assert both[: len(first)] == first
    assert len(both) == 2 * len(first)
    assert float(row["reward"]) == pytest.approx(
        fmean(episode.reward or 0.0 for episode in both[len(first) :]), abs=1e-4
    )


def test_an_endpoint_that_is_down_stops_the_evaluation_without_losing_episodes(
    tmp_path: Path, capsys: Shown, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    out, nobody = f"out={tmp_path}/e", "base_url=http://127.0.0.1:9/v1"
    arguments = ["env=twenty_questions", "models=oracle,openai:gpt", "max_tasks=2", "parallel=2"]
    assert run(*arguments, nobody, out) == 1
    said = capsys.readouterr().err
    assert "error: openai:gpt: a request to the endpoint failed: APIConnectionE" in said
    assert f"To resume: evert evaluate {out}" in said
    assert {episode.model for episode in episodes(tmp_path / "e")} == {"oracle"}


def test_a_request_that_an_endpoint_refuses_is_a_failed_episode(
    tmp_path: Path, monkeypatch: Patch, capsys: Shown
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    asked = list[str]()

    def reply(body: dict[str, Any], key: str) -> dict[str, Any] | None:
        asked.append(key)
        return {"role": "assistant", "content": "six"} if len(asked) > 2 else None

    with chat_endpoint(reply) as url:
        typed = ["env=identity", "models=openai:gpt", f"base_url={url}", "split=test"]
        assert run(*typed, "max_tasks=3", "seeds=1", f"out={tmp_path}/e") == 0
    assert [e.failure for e in episodes(tmp_path / "e")].count("refused_request") == 2
    assert "2 of 3 episodes failed (2 refused requests)" in capsys.readouterr().out


TEXT_AS_TASKS = """
TASKS = "hello"

async def agent(client, task):
    await client.chat.completions.create(messages=[{"role": "user", "content": task}])
    return 1.0
"""


def test_passing_tasks_as_a_string_warns(tmp_path: Path, monkeypatch: Patch, capsys: Shown) -> None:
    (tmp_path / "texts.py").write_text(TEXT_AS_TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    agent = ["agent=texts:agent", "test_tasks=texts:TASKS", "max_tasks=1", "seeds=1"]
    assert run(*agent, "models=evert-tiny", f"out={tmp_path}/e") == 0
    assert "warning: test_tasks is a string ('h')" in capsys.readouterr().out


def test_an_evaluation_of_an_endpoint_with_a_password_in_its_url_can_be_resumed(
    tmp_path: Path, monkeypatch: Patch, capsys: Shown
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    asked = list[str]()

    def reply(body: dict[str, Any], key: str) -> dict[str, Any]:
        asked.append(key)
        return {"role": "assistant", "content": "six"}

    with chat_endpoint(reply) as url:
        address = url.replace("://", "://me:open-sesame@")
        typed = ["env=identity", "models=openai:gpt", f"base_url={address}", "split=test"]
        typed += ["max_tasks=1", "seeds=1", f"out={tmp_path}/e"]
        assert [run(*typed), run(*typed)] == [0, 0]
        assert run(f"out={tmp_path}/e") == 1
    assert len(asked) == 1
    assert "with the password: base_url=..." in capsys.readouterr().err


KEY = "a-key-of-ours-1"


@pytest.fixture
def url(monkeypatch: Patch) -> Iterator[str]:
    """Start an evert-tiny server that reads its key from the environment; yield its URL."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    with serving(ServeSettings(model="evert-tiny", device="cpu")) as said:
        assert KEY not in said
        yield said.partition(" at ")[2].split()[0]


def ask(url: str, body: dict[str, Any], key: str) -> Any:
    request = urllib.request.Request(
        f"{url}/completions", json.dumps(body).encode(), {"Authorization": f"Bearer {key}"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_weights_are_served_and_evaluated_in_the_requested_dtype(monkeypatch: Patch) -> None:
    engines: list[Engine] = []
    make = Engine.__init__

    def watched(self: Engine, *given: Any) -> None:
        make(self, *given)
        engines.append(self)

    monkeypatch.setattr(Engine, "__init__", watched)
    with serving(ServeSettings(model="evert-tiny", device="cpu", dtype="bfloat16")):
        assert engines[0].base_sampler("evert-tiny")._model.model.dtype == torch.bfloat16
    unsaid = EvaluateSettings(env="identity", models=("evert-tiny",))
    said = EvaluateSettings(env="identity", models=("evert-tiny",), dtype="bfloat16")
    assert "dtype" not in unsaid.overrides  # falls back to the run's dtype
    assert said.run_of("evert-tiny").dtype == "bfloat16"


def test_ctrl_c_stops_a_server_that_answers_at_its_printed_address() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_API_KEY"}
    program = [sys.executable, "-m", "evert.trainers.cli"]
    command = [*program, "serve", "model=evert-tiny", "device=cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        serves, key = process.stdout.readline(), process.stdout.readline()
        url = serves.partition(" at ")[2].split()[0]
        body = {"model": "evert-tiny", "prompt": "Hello", "max_tokens": 3, "temperature": 0}
        [choice] = ask(url, body, key.split()[1])["choices"]
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert len(choice["token_ids"]) <= 3
    assert choice["text"] == "".join(choice["logprobs"]["tokens"])
    assert "curl http://127.0.0.1" in rest
    assert rest.endswith("Stopped.\n")
    assert process.returncode == 0


def test_served_weights_play_like_the_same_weights_in_process(url: str, tmp_path: Path) -> None:
    models = f"models=vllm:{url},evert-tiny"
    assert run("env=identity", models, "split=test", "max_tasks=8", f"out={tmp_path}/e") == 0
    served, own = rows(tmp_path / "e")
    played = sorted(episodes(tmp_path / "e"), key=lambda e: (e.model, e.task, e.seed))
    assert {**served, "model": ""} == {**own, "model": ""}
    assert [e.reward for e in played[:32]] == [e.reward for e in played[32:]]


def test_a_model_that_the_server_does_not_have_is_refused(
    url: str, tmp_path: Path, capsys: Shown
) -> None:
    for named, said in (
        ([f"models=vllm:{url}#another"], f"Add one of them after a #: vllm:{url}#evert-tiny"),
        ([f"models=vllm:{url}", "model_name=evert-tiny-20q"], "our tokenizer (evert-tiny-20q)"),
    ):
        assert run("env=identity", *named, f"out={tmp_path}/e") == 1
        assert said in capsys.readouterr().err
    assert find_model("vllm:http://h:1/v1") == ModelRef("server", None, "http://h:1/v1")
    assert find_model("vllm:http://h:1/v1/#m") == ModelRef("server", "m", "http://h:1/v1")
    with pytest.raises(ModelNameError, match=r"vllm:http://HOST:PORT/v1#MODEL"):
        find_model("vllm:model")


def test_an_endpoints_host_stays_reachable_alongside_frozen_weights() -> None:
    settings = EvaluateSettings(
        env="identity", models=("x",), frozen={"user": "evert-tiny"}, policy_names=("gpt-4o",)
    )
    name = "https://far.example/v1#m"
    contestant = find(name, prepare(settings, [name]))
    assert isinstance(contestant.model, RemoteModel)
    with contestant.ready(print):
        assert not network_is_refused("far.example")
        assert network_is_refused("elsewhere.example")
