"""No secret of the trainer's is in what a run leaves: its folder, samples, report and logs.

A run whose command prints all that it can see, a key that it was handed included, and one whose
agent, inside of the trainer's process, logs its whole environment, asks the model about it and
raises it. Everything under their folders is searched.
"""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SECRETS = {
    "TINKER_API_KEY": "tml-sentinel-01",
    "AWS_SECRET_ACCESS_KEY": "wJalr/sentinel+02\\",
    "WANDB_API_KEY": "sentinel" + "03" * 16,
    "HF_TOKEN": "hf_sentinel04",
    "GITHUB_TOKEN": "ghp_sentinel05",
    "OPENAI_API_KEY": 'sk-"sentinel"-06',
    "DATABASE_URL": "postgres://me:sentinel-07@host/db",
    "MY_PASSWORD": "zwölf-sentinel-08",
}

EVERT = "from evert.trainers.cli import main; raise SystemExit(main())"

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

SETTINGS = [
    "train_tasks=telling_agents:TASKS", "test_tasks=telling_agents:TASKS", "engine=embedded",
    "device=cpu", "steps=1", "batch_size=2", "group_size=2", "max_tokens=8", "samples=2",
    "eval_every=0", "on_agent_error=0.0", "tensorboard=True", "log_path=run",
    "models.judge=https://me:sentinel-09@host/v1#judge",
]  # fmt: skip


@pytest.mark.parametrize("agent", ["command", "inside"])
def test_no_file_of_a_run_holds_a_secret(agent: str, tmp_path: Path) -> None:
    (tmp_path / "telling_agents.py").write_text(AGENTS)
    tracked = ["wandb_project=secrets"] if find_spec("wandb") else []
    for command in (
        ["train", f"agent=telling_agents:{agent}", *SETTINGS, *tracked],
        ["report", "run"],
        ["evaluate", "run", f"agent=telling_agents:{agent}", "out=evaluation", "seeds=1"],
    ):
        done = subprocess.run(
            [sys.executable, "-c", EVERT, *command],
            cwd=tmp_path,
            env={**os.environ, **SECRETS, "WANDB_MODE": "offline"},
            capture_output=True,
            text=True,
            check=False,
        )
        if command[0] != "evaluate":
            assert done.returncode == 0, done.stderr

    files = [path for path in tmp_path.glob("*/**/*") if path.is_file()]
    telling = [
        f"{path.relative_to(tmp_path)}: {found[0][:80]!r}"
        for path in files
        if (found := re.findall(rb".{0,40}(?:sentinel|evert-[\w-]{32}).{0,20}", path.read_bytes()))
    ]

    assert len(files) > 20
    assert not telling
