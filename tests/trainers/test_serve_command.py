"""``evert serve``, and ``evert evaluate`` of what it serves."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainers.test_evaluate_command import episodes, rows, run

from evert.trainers.commands.serve import ServeSettings, serving
from evert.trainers.config.evaluate import EvaluateSettings
from evert.trainers.config.model_names import (
    ModelNameError,
    NamedEndpoint,
    NamedServer,
    find_model,
)
from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.common.network import network_is_refused
from evert.trainers.episodes.players import find

KEY = "a-key-of-ours-1"


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a server of evert-tiny, with a key from the environment."""
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


def test_weights_are_served_in_the_type_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engines: list[Engine] = []
    make = Engine.__init__

    def watched(self: Engine, *given: Any) -> None:
        make(self, *given)
        engines.append(self)

    monkeypatch.setattr(Engine, "__init__", watched)
    with serving(ServeSettings(model="evert-tiny", device="cpu", dtype="bfloat16")):
        assert engines[0].base_sampler("evert-tiny")._model.weights.model.dtype == torch.bfloat16


def test_an_evaluation_has_the_runs_type_of_weights_or_the_one_that_was_asked_for() -> None:
    unsaid = EvaluateSettings(env="identity", models=("evert-tiny",))
    said = EvaluateSettings(env="identity", models=("evert-tiny",), dtype="bfloat16")
    assert "dtype" not in unsaid.asked
    assert said.run_of("evert-tiny").dtype == "bfloat16"


def test_ctrl_c_ends_a_server_that_answers_what_it_said_it_would() -> None:
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


def test_what_is_served_plays_as_the_same_weights_here_do(url: str, tmp_path: Path) -> None:
    models = f"models=vllm:{url},evert-tiny"

    assert run("env=identity", models, "split=test", "max_tasks=8", f"out={tmp_path}/e") == 0

    served, own = rows(tmp_path / "e")
    played = sorted(episodes(tmp_path / "e"), key=lambda e: (e.model, e.task, e.seed))
    assert {**served, "model": ""} == {**own, "model": ""}
    assert [e.reward for e in played[:32]] == [e.reward for e in played[32:]]


def test_a_model_or_a_base_that_the_server_does_not_have_is_refused(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for named, said in (
        ([f"models=vllm:{url}#another"], f"Name one of them after a #: vllm:{url}#evert-tiny"),
        ([f"models=vllm:{url}", "model_name=evert-tiny-20q"], "our tokenizer (evert-tiny-20q)"),
    ):
        assert run("env=identity", *named, f"out={tmp_path}/e") == 1
        assert said in capsys.readouterr().err


def test_a_server_of_token_ids_is_told_from_an_endpoint_by_its_name() -> None:
    assert find_model("vllm:http://h:1/v1") == NamedServer("http://h:1/v1")
    assert find_model("vllm:http://h:1/v1/#m") == NamedServer("http://h:1/v1", "m")
    with pytest.raises(ModelNameError, match=r"vllm:http://HOST:PORT/v1#MODEL"):
        find_model("vllm:model")


def test_an_endpoints_host_can_be_reached_beside_frozen_weights_of_the_engine() -> None:
    settings = EvaluateSettings(
        env="identity", models=("x",), frozen={"user": "evert-tiny"}, policy_names=("gpt-4o",)
    )
    contestant = find("https://far.example/v1#m", settings)
    assert isinstance(contestant.named, NamedEndpoint)

    with contestant.ready(print):
        assert not network_is_refused("far.example")
        assert network_is_refused("elsewhere.example")
