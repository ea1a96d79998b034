"""No secret of the trainer ends up in a run's folder, samples, report or logs.

One run's command prints everything that it can see, including a key that was passed to it. The
other run's agent, inside the trainer's process, logs its whole environment, sends the environment
to the model and raises an error that contains it. The test searches all files of both runs.

A secret passed from Python (a password in a model's URL) must not be in the run's folder, output or
errors.
"""

import os
import re
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from subprocess import STDOUT

import pytest
from tests.nightly import each
from tests.trainers.kit import COMMANDS, run_python

SECRETS = {
    "TINKER_API_KEY": "tml-sentinel-01", "AWS_SECRET_ACCESS_KEY": "wJalr/sentinel+02\\",
    "WANDB_API_KEY": "sentinel" + "03" * 16, "HF_TOKEN": "hf_sentinel04",
    "GITHUB_TOKEN": "ghp_sentinel05", "OPENAI_API_KEY": 'sk-"sentinel"-06',
    "DATABASE_URL": "postgres://me:sentinel-07@host/db", "MY_PASSWORD": "zwölf-sentinel-08",
}  # fmt: skip

AGENTS = """
import logging, os, sys, warnings
from evert import Outcome, ProcessAgent

ASK = '''
import json, os, sys, urllib.request
print(json.dumps(dict(os.environ)), open("/proc/self/environ").read())
print(dict(os.environ), file=sys.stderr, flush=True)
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps({"model": "policy", "messages": [
        {"role": "user", "content": "Say " + os.environ["HANDED_TOKEN"]}]}).encode(),
    {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
said = urllib.request.urlopen(request).read()
sys.exit(len(said) % 3 == 0)
'''
command = ProcessAgent(
    [sys.executable, "-c", ASK], env={"HANDED_TOKEN": "{env[GITHUB_TOKEN]}"}
)
async def inside(client, task):
    everything = str(dict(os.environ)) + client.api_key
    client.log(everything=everything, **{os.environ["HF_TOKEN"]: 1})
    client.metric(os.environ["GITHUB_TOKEN"], 1.0)
    logging.getLogger("theirs").warning("all of it: %s", everything)
    warnings.warn(everything)
    completion = await client.chat.completions.create(
        messages=[{"role": "user", "content": "Say " + os.environ["HF_TOKEN"]}]
    )
    if task == "fail":
        try:
            raise ValueError(everything)
        except ValueError:
            logging.getLogger("theirs").exception("it failed")
            raise
    said = completion.choices[0].message.content
    return Outcome(float(len(said)), {everything[-9:]: 1.0}, {"environment": everything})

TASKS = ["play", "fail"]
"""

SECRET = rb".{0,40}(?:sentinel|evert-[\w-]{32}).{0,20}"
TRAIN = (
    "train_tasks=telling_agents:TASKS test_tasks=telling_agents:TASKS engine=embedded device=cpu "
    "steps=1 batch_size=2 group_size=2 max_tokens=8 samples=2 eval_every=0 on_agent_error=0.0 "
    "tensorboard=True log_path=run models.judge=https://me:sentinel-09@host/v1#judge"
)


@pytest.mark.parametrize("agent", each(["command", "inside"], ["inside"]))
def test_no_file_of_a_run_holds_a_secret(agent: str, tmp_path: Path) -> None:
    (tmp_path / "telling_agents.py").write_text(AGENTS)
    tracked = "wandb_project=secrets" if find_spec("wandb") else ""
    commands = (
        f"train agent=telling_agents:{agent} {TRAIN} {tracked}",
        "report run",
        f"evaluate models=run agent=telling_agents:{agent} test_tasks=telling_agents:TASKS "
        "out=evaluation seeds=1",
    )
    env = {**os.environ, **SECRETS, "WANDB_MODE": "offline"}
    shown = run_python("-c", COMMANDS, *commands, cwd=tmp_path, env=env)
    for command in ("train", "report", "evaluate"):
        assert f"{command} ended with 0" in shown

    files = [path for path in tmp_path.glob("*/**/*") if path.is_file()]
    telling = [
        f"{path.relative_to(tmp_path)}: {matches[0][:80]!r}"
        for path in files
        if (matches := re.findall(SECRET, path.read_bytes()))
    ]

    assert len(files) > 20
    assert not telling


FROM_PYTHON = """
import os
import evert

KEY = os.environ["OPENAI_API_KEY"]

async def agent(client, task):
    async def ask(text, **more):
        return await client.chat.completions.create(
            messages=[{"role": "user", "content": text}], **more
        )
    said = (await ask(f"quoted {KEY} https://bob:sentinel-12@db/x")).choices[0].message.content
    client.log(note="at https://bob:sentinel-12@db/x")
    for more in ({"model": f"judge-quoted-{KEY}"}, {"model": "user"}, {"stop": [""]}):
        try:
            await ask("quoted", **more)
        except Exception as error:
            client.log(**{more.get("model", "stop"): str(error)})
    if task % 3 == 0:
        raise ValueError(f"quoted {said} {KEY} https://bob:sentinel-12@db/x")
    return len(said) % 3

TASKS = range(8)
if __name__ == "__main__":
    evert.train(
        agent, TASKS, test_tasks=range(8, 10), steps=1, batch_size=4, group_size=2, max_tokens=8,
        samples=1, engine="embedded", device="cpu", log_path="run", record=True, tensorboard=True,
        models={"user": "https://bob:sentinel-10@127.0.0.1:9/v1#M"},
        base_url="https://sentinel-13@127.0.0.1:9", tags=(f"tag-{KEY}",),
    )
"""
EVALUATE = "evaluate agent=given:agent test_tasks=given:TASKS seeds=1 max_tasks=1"
MODEL = "https://bob:sentinel-14@127.0.0.1:9/v1"
LATER = (
    "report run",
    f"{EVALUATE} models={MODEL}#M out=evaluation",
    f"{EVALUATE} models={MODEL}",  # an error, because it is not a model
)


def read(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files in a folder's subfolders, except compiled Python files."""
    files = [path for path in folder.glob("*/**/*") if path.is_file() and path.suffix != ".pyc"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_secret_passed_from_python_is_in_no_output(tmp_path: Path) -> None:
    """The later commands run in a new process, which has not seen the secrets of the training."""
    (tmp_path / "given.py").write_text(FROM_PYTHON)
    run = partial(run_python, cwd=tmp_path, env={**os.environ, **SECRETS}, errors=STDOUT)
    trained, later = run("given.py"), run("-c", COMMANDS, *LATER)
    written = read(tmp_path)
    assert "[PASSWORD]" in trained
    assert "report ended with 0" in later
    assert "is an address without a model" in later
    assert len(written) > 10
    ways = {"train": trained.encode(), "commands": later.encode(), **written}
    assert not [way for way, content in ways.items() if b"sentinel" in content]
