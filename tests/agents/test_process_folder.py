"""Prepare the folder a command runs in: files, setup and placeholders."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.processes import marked, new_mark
from tests.agents.test_process import error_of, is_there, last_of, python
from tests.kit import Patch

from evert import AgentTimeoutError, ChatAgentEnv, ProcessAgent
from evert.bridge.errors import CommandError, InvalidAgentError

SHOW = 'import sys; ask("x"); print(*(open(name).read() for name in sys.argv[1:]), sep="|", end="")'


async def output(agent: ProcessAgent, **options: Any) -> str:
    return str((await last_of(agent, **options)).logs["stdout"])


async def test_files_are_written_into_the_folder_with_placeholders_replaced(tmp_path: Path) -> None:
    (tmp_path / "repo" / "inner").mkdir(parents=True)
    (tmp_path / "repo" / "inner" / "a.py").write_text("f'{task}'")
    (tmp_path / "one.py").write_text("f'{model}'")
    files: dict[str, str | bytes | Path] = {
        "deep/down/config": "{model} does {task}, {not this} and {}",
        "raw": b"f'{task}'",
        ".": tmp_path / "repo",
        "sub/one.py": tmp_path / "one.py",
    }
    names = ("deep/down/config", "raw", "inner/a.py", "sub/one.py")
    laid = ["policy does it, {not this} and {}", "f'{task}'", "f'{task}'", "f'{model}'"]

    assert (await output(python(SHOW, *names, files=files), task="it")).split("|") == laid
    assert (tmp_path / "repo" / "inner" / "a.py").read_text() == "f'{task}'"


async def test_home_files_are_outside_the_folder_and_deleted_with_it() -> None:
    code = "print(os.listdir(), os.environ['CONFIG'], open(sys.argv[1]).read())"
    files, env = {"{home}/a/config": "key={api_key}"}, {"CONFIG": "{home}/a"}
    agent = python(f"import sys; ask('x'); {code}", "{home}/a/config", files=files, env=env)
    listing, home, text = (await output(agent)).split()

    assert (listing, text) == ("[]", "key=[ROLLOUT_KEY]")
    assert Path(home).name == "a"
    assert not is_there(home)


async def test_files_replace_what_an_earlier_episode_left_behind(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "work" / "link").symlink_to(tmp_path / "precious")
    os.mkfifo(tmp_path / "work" / "pipe")
    files: dict[str, str | bytes | Path] = {"link": "a", "pipe": b"b"}
    agent = python(SHOW, "link", "pipe", files=files, cwd=tmp_path / "work")

    assert await output(agent) == "a|b"
    assert (tmp_path / "precious").read_text() == "mine"


async def test_a_setup_command_runs_in_the_folder_after_the_files() -> None:
    code = "import sys; open('made', 'w').write(open('given').read() + sys.argv[1])"
    setup = [sys.executable, "-c", code, "{task}"]
    agent = python(SHOW, "made", files={"given": "from "}, setup=setup)

    assert await output(agent, task="setup") == "from setup"


async def test_a_setup_function_gets_the_folder_and_the_task_and_can_be_async() -> None:
    def lay_out(folder: Path, task: Any) -> None:
        for name, text in task["files"].items():
            (folder / name).write_text(text)

    async def asynchronous(folder: Path, task: Any) -> None:
        await asyncio.sleep(0)
        (folder / "a").write_text(repr(task))

    task = {"files": {"a": "one", "b": "two"}}
    assert await output(python(SHOW, "a", "b", setup=lay_out), task=task) == "one|two"
    assert await output(python(SHOW, "a", setup=asynchronous)) == "None"


async def test_placeholders_inside_a_task_are_not_replaced() -> None:
    code = 'import sys; ask("x"); print(sys.argv[1], end="")'
    rows: list[tuple[str, Any, str]] = [
        ("{task[prompt]}", {"prompt": "say {task[b]} {model}", "b": 1}, "say {task[b]} {model}"),
        ("{task[b]}-{task[b]}", {"prompt": "x", "b": [1, "2"]}, '[1, "2"]-[1, "2"]'),
        ("{task[1]}", ["zero", "one"], "one"),
        ("{model[0]}", "x", "policy[0]"),
        ("{tasks} {{task}}", "x", "{tasks} {x}"),
    ]
    for argument, task, text in rows:
        assert await output(python(code, argument), task=task) == text


async def test_a_long_task_is_passed_in_a_file() -> None:
    task = {"name": "big", "text": "é" * 100_000}
    code = """
import sys
task = json.load(open(os.environ["EVERT_TASK_FILE"]))
ask("x")
print(sys.argv[1], len(task["text"]), "EVERT_TASK" in os.environ)
"""
    assert await output(python(code, "{task[name]}"), task=task) == "big 100000 False\n"


async def test_the_error_for_overlong_arguments_mentions_the_task_file() -> None:
    error = await error_of(python("", "{task}"), task="x" * 3_000_000)

    assert "its arguments are too long" in str(error)
    assert "the file in EVERT_TASK_FILE" in str(error)


async def test_placeholders_work_in_variables_and_none_unsets_a_variable(
    monkeypatch: Patch,
) -> None:
    monkeypatch.setenv("MY_TOKEN", "secret")
    code = 'ask("x"); print(os.environ.get("MY_TOKEN"), os.environ["WHERE"] == os.getcwd())'
    agent = python(code, env={"MY_TOKEN": None, "WHERE": "{folder}"})

    assert await output(agent) == "None True\n"


def test_invalid_files_and_setups_are_rejected(tmp_path: Path) -> None:
    for name in ("/etc/passwd", "../out", "a/../../out", "{home}/../out"):
        with pytest.raises(InvalidAgentError, match="would be outside the episode's folder"):
            ProcessAgent(["ls"], files={name: "x"})
    content: Any = 7
    with pytest.raises(InvalidAgentError, match="'a' has type int; expected text"):
        ProcessAgent(["ls"], files={"a": content})
    with pytest.raises(InvalidAgentError, match="copied from .*nowhere, which does not exist"):
        ProcessAgent(["ls"], files={"a": tmp_path / "nowhere"})
    setups: list[Any] = ["git init", [], [1]]
    for setup in setups:
        with pytest.raises(InvalidAgentError, match="setup=.*expected a command as a list of str"):
            ProcessAgent(["ls"], setup=setup)


async def test_the_error_for_a_missing_task_field_names_it() -> None:
    tasks: list[Any] = [{"other": 1}, "text", ["one"]]
    for task in tasks:
        error = await error_of(python("", "{task[prompt]}"), task=task)
        assert isinstance(error.__cause__, InvalidAgentError)
        assert "{task[prompt]}, but the task" in str(error)


async def test_the_error_for_a_failing_setup_shows_its_output() -> None:
    error = await error_of(python("", setup=[sys.executable, "-c", "raise SystemExit('no disk')"]))

    assert isinstance(error.__cause__, CommandError)
    assert "exited with status 1, so the agent was not started" in str(error)
    assert f"The setup {sys.executable!r} wrote last: stderr 'no disk'" in str(error)


async def test_a_hanging_setup_times_out_and_leaves_no_process() -> None:
    mark = new_mark()
    code = "import sys, time; print('half', flush=True); time.sleep(600)"
    agent = python("", setup=[sys.executable, "-c", code, mark])
    with pytest.raises(AgentTimeoutError, match="The setup .* wrote last: stdout 'half'"):
        await ChatAgentEnv(agent, agent_timeout=2).initial_observation()

    assert not marked(mark)
