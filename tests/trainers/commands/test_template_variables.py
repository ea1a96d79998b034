"""``chat_template.KEY=VALUE`` is recorded, resumed, and used in every prompt of the run's model.

The model is the bundled base model with a template that writes its variable into the prompt.
"""

import json
import shutil
from pathlib import Path

import pytest
from tests.trainers.kit import SMALL, Cli

from evert.bridge.tokens.bases import base_path, base_tokenizer
from evert.trainers.cli import main
from evert.trainers.config.frozen_models import frozen_models
from evert.trainers.system.files import read_jsonl

TEMPLATE = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if mood is defined %}I am {{ mood }}. {% endif %}{% endif %}"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train one step with prompts that end with the variable; tests must not change the run."""
    home = tmp_path_factory.mktemp("trained")
    folder = shutil.copytree(base_path(), home / "model")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    train(home / "run", f"model_name={folder}", "steps=1", "chat_template.mood=glad")
    return home / "run"


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def train(run: Path, *more: str) -> None:
    words = [*SMALL, "eval_every=0", "samples=0", "record=True", f"log_path={run}"]
    assert main(["train", *words, *more]) == 0


def endings(folder: Path) -> set[str]:
    """Return the text after the last assistant header of each recorded prompt in a folder."""
    paths = [*folder.glob("rollouts.jsonl"), *folder.glob("rollouts/*.jsonl")]
    rows = [row for path in paths for row in read_jsonl(path)]
    prompts = [step["prompt"]["tokens"] for row in rows for step in row["steps"]]
    texts = (str(base_tokenizer().decode(tokens)) for tokens in prompts)
    return {text.rpartition("<|im_start|>assistant\n")[2] for text in texts}


def test_a_resumed_run_keeps_its_variable_and_refuses_another(copied: Path, cli: Cli) -> None:
    run_json = json.loads((copied / "run.json").read_text())
    assert run_json["settings"]["chat_template"] == {"mood": "glad"}
    assert endings(copied) == {"I am glad. "}

    train(copied, "steps=2")
    assert len(read_jsonl(copied / "batches.jsonl")) == 2
    assert endings(copied) == {"I am glad. "}

    for words in (["chat_template.mood=sad"], ["renderer_name=qwen3_instruct"]):
        shown = cli(f"train log_path={copied} steps=3", *words, status=1)
        assert "contains a run with different settings" in shown


def test_workers_use_the_variable(copied: Path) -> None:
    train(copied, "steps=2", "rollouts=pool", "rollout_workers=1")
    assert len(read_jsonl(copied / "batches.jsonl")) == 2
    assert endings(copied) == {"I am glad. "}


def test_evaluations_and_judges_use_the_variable(trained: Path, tmp_path: Path, cli: Cli) -> None:
    def evaluated(name: str, *more: str) -> set[str]:
        words = "evaluate env=identity seeds=1 max_tasks=2 record=True device=cpu"
        cli(words, f"models={trained}", f"out={tmp_path / name}", *more)
        return endings(tmp_path / name)

    assert evaluated("as trained") == {"I am glad. "}
    assert evaluated("otherwise", "chat_template.mood=sad") == {"I am sad. "}
    [judge] = frozen_models({"judge": str(trained)}).values()
    assert judge.renderer_name == "template(mood='glad')"  # type: ignore[union-attr]


@pytest.mark.parametrize("command", ["train steps=1 log_path=", "evaluate models=evert-tiny out="])
def test_a_variable_that_the_template_does_not_read_is_refused_and_leaves_no_file(
    command: str, tmp_path: Path, cli: Cli
) -> None:
    folder = shutil.copytree(base_path(), tmp_path / "model")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    words = command.replace("evert-tiny", str(folder)).split()
    words += [f"model_name={folder}"] if words[0] == "train" else []
    words[-1 if words[-1].endswith("=") else -2] += str(tmp_path / "out")

    shown = cli(*words, "env=identity", "device=cpu", "chat_template.mod=glad", status=1)
    assert "does not use a variable mod. Did you mean mood? It uses: mood." in shown
    assert not (tmp_path / "out").exists()
