"""mini-swe-agent: solves issues in a repository using only a shell.

Source: SWE-agent/mini-swe-agent (MIT), used unchanged from the mini-swe-agent package. It calls its
model through LiteLLM. evert takes over these calls, so the agent doesn't need a client.

    evert train agent=mini_swe:agent train_tasks=mini_swe:TASKS on_agent_error=0
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # don't download prices on import
os.environ.setdefault("LITELLM_LOG", "ERROR")  # don't log every call
os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
os.environ.setdefault("MSWEA_COST_TRACKING", "ignore_errors")  # the policy has no price
os.environ.setdefault("MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT", "1")  # don't retry for minutes

import yaml
from minisweagent import package_dir
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

TASKS = [
    {"file": name, "text": f"{text}\n", "issue": f"Write a file {name} with the line: {text}"}
    for name, text in [("hello.txt", "hello"), ("notes.md", "# Notes"), ("run.sh", "exit 0")]
]
CONFIG = yaml.safe_load((package_dir / "config" / "mini.yaml").read_text())["agent"]
CONFIG["step_limit"] = 8

# -- glue ----------------------------------------------------------------------------------------


def agent(client, task):
    """Solve an issue in an empty folder; return 0.5 for creating the file, 1 if it is right."""
    name, key = f"openai/{client.model}", {"api_key": "unused"}
    with tempfile.TemporaryDirectory() as folder:
        model, shell = LitellmModel(model_name=name, model_kwargs=key), LocalEnvironment(cwd=folder)
        DefaultAgent(model, shell, **CONFIG).run(task["issue"])
        file = Path(folder, task["file"])
        return 0.5 * file.exists() + 0.5 * (file.exists() and file.read_text() == task["text"])
