"""Run commands as agents, with real processes and real HTTP, and check rewards and errors.

``test_process_folder.py`` covers files and setup, and ``tests/faults`` covers invalid rewards.
"""

import asyncio
import json
import os
import pickle
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests import kit
from tinker_cookbook.rl.types import Trajectory, Transition

from evert import AgentError, AgentTimeoutError, CommandError, Outcome, ProcessAgent, ScriptedPolicy
from evert.agents.commands import ProcessResult
from evert.bridge.episode.agent import NO_TASK
from evert.bridge.errors import InvalidAgentError

ASK = """
import json, os, urllib.request

def ask(text, model=os.environ["EVERT_MODEL"]):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": model, "messages": [{"role": "user", "content": text}]}).encode(),
        {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"]
"""


def python(code: str, *arguments: str, **options: Any) -> ProcessAgent:
    return ProcessAgent([sys.executable, "-c", ASK + code, *arguments], **options)


async def play(agent: ProcessAgent, *replies: str, task: object = NO_TASK) -> Trajectory:
    return await kit.play(agent, *(replies or ("yes",)), task=task)


async def last_of(agent: ProcessAgent, *replies: str, **options: Any) -> Transition:
    return (await play(agent, *replies, **options)).transitions[-1]


def is_there(path: str) -> bool:
    return Path(path).exists()


# -- the environment of a command ----------------------------------------------------------------


async def test_a_script_plays_an_episode_and_its_exit_status_sets_the_reward() -> None:
    code = 'import sys; sys.exit(0 if ask("Is it?") + ask("Sure?") == "yesno" else 3)'
    for replies, reward, status in [(["yes", "no"], 1.0, 0), (["no", "yes"], 0.0, 3)]:
        trajectory = await play(python(code), *replies)
        assert kit.rewards(trajectory) == [0.0, reward]
        assert trajectory.transitions[-1].logs["exit_status"] == status


async def test_the_real_sdks_need_no_configuration_in_a_script() -> None:
    code = """
import anthropic, openai
model = os.environ["EVERT_MODEL"]
messages = [{"role": "user", "content": "Hi"}]
first = openai.OpenAI().chat.completions.create(model=model, messages=messages)
second = anthropic.Anthropic().messages.create(model=model, messages=messages, max_tokens=99)
from google import genai
google = genai.Client()
third = google.models.generate_content(model=model, contents="Hi")
print(first.choices[0].message.content, second.content[0].text, third.text)
"""
    last = await last_of(python(code), "one", "two", "three")

    assert (last.logs["stdout"], last.reward) == ("one two three\n", 1.0)


async def test_the_task_is_in_the_environment_and_in_the_arguments() -> None:
    code = 'import sys; ask("x"); print(sys.argv[1], os.environ["EVERT_TASK"], sep="|")'
    tasks: list[tuple[Any, str]] = [
        ("say {model}", "say {model}"),
        ({"a": [1]}, '{"a": [1]}'),
        (7, "7"),
        (NO_TASK, ""),
    ]
    for task, text in tasks:
        last = await last_of(python(code, "<{task}>"), task=task)
        assert last.logs["stdout"] == f"<{text}>|{text}\n"


async def test_placeholders_for_the_address_work_in_arguments() -> None:
    code = 'import sys; ask("x"); print(*sys.argv[1:], sys.argv[3] == os.environ["OPENAI_API_KEY"])'
    names = ("{base_url}", "{root_url}", "{api_key}", "{model}")
    logs = (await last_of(python(code, *names))).logs

    base, root, key, model, has_key = str(logs["stdout"]).split()
    assert base == f"{root}/v1"
    assert root.startswith("http://127.0.0.1:")
    assert (key, model, has_key) == ("[ROLLOUT_KEY]", "policy", "True")


# -- rewards -------------------------------------------------------------------------------------


async def test_a_reward_can_be_written_to_a_file() -> None:
    code = 'import sys; ask("x"); open(os.environ["EVERT_REWARD_FILE"], "w").write(sys.argv[1])'
    for content, reward in [('{"reward": -1, "metrics": {"tests": 3}}', -1.0), ("true", 1.0)]:
        last = await last_of(python(code, content, reward="file"))
        assert last.reward == reward
        assert last.metrics.get("tests") == (3 if "tests" in content else None)


async def test_a_reward_can_be_a_sync_or_async_function_of_output_files_and_task() -> None:
    def score(result: ProcessResult, task: Any) -> Outcome:
        assert (result.stdout, result.stderr, result.status) == ("yes\n", "abc", 0)
        return Outcome(float((result.folder / "made").read_text() == task))

    async def later(result: ProcessResult, task: Any) -> Outcome:
        await asyncio.sleep(0)
        return score(result, task)

    code = 'import sys; print(ask("x")); open("made", "w").write("seven"); sys.stderr.write("abc")'
    for reward in (score, later):
        assert (await last_of(python(code, reward=reward), task="seven")).reward == 1.0


async def test_a_blocking_reward_function_does_not_block_other_episodes() -> None:
    meeting = threading.Barrier(2)

    def score(result: ProcessResult, task: Any) -> bool:
        meeting.wait(30)  # deadlocks unless both episodes are scored concurrently
        return True

    agent = python('ask("x")', reward=score)
    trajectories = await asyncio.gather(play(agent), play(agent))

    assert [trajectory.transitions[-1].reward for trajectory in trajectories] == [1.0, 1.0]


async def test_a_reward_can_be_a_command_that_judges_the_folder() -> None:
    judge = "import sys; print('judged'); sys.exit(open(sys.argv[1]).read() != sys.argv[2])"
    code = 'import sys; ask("x"); open("made", "w").write(sys.argv[1]); raise SystemExit(3)'
    for text, reward in [("seven", 1.0), ("eight", 0.0)]:
        check = [sys.executable, "-c", judge, "{folder}/made", "{task}"]
        last = await last_of(python(code, text, reward=check), task="seven")
        assert last.reward == reward
        assert last.logs["exit_status"] == 3
        assert last.logs["reward_status"] == 1 - reward
        assert last.logs["reward_stdout"] == "judged\n"


async def test_the_judges_files_folder_and_home_are_hidden_from_the_agent() -> None:
    names = "('HOME', 'TMPDIR', 'EVERT_TASK_FILE')"
    look = f"print(*(os.environ[name] for name in {names}), sys.argv[1])"
    seen = "print(sorted(os.listdir('.')), sorted(os.listdir(os.environ['HOME'])))"
    agent = python(
        f"import sys; ask('x'); {look}; {seen}; print('EVERT_REWARD_FILE' in os.environ)",
        "{folder}",
        files={
            "mine": "",
            "{home}/config": "",
            "{judge}/look.py": f"import os, sys\n{look}\n{seen}",
        },
        reward=[sys.executable, "look.py", "{folder}"],
    )
    logs = (await last_of(agent)).logs
    first, listing, has_file = str(logs["stdout"]).splitlines()
    then, judges_listing = str(logs["reward_stdout"]).splitlines()

    assert (listing, has_file) == ("['mine'] ['config']", "False")
    assert judges_listing == "['look.py'] ['config']"
    assert first.split()[3] == then.split()[3]
    assert not {*first.split()[:3]} & {*then.split()[:3]}


@pytest.mark.parametrize("reward", [["python3", "check.py"], ["test", "-e", "made"]])
def test_a_judge_command_without_the_agents_folder_is_rejected(reward: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidAgentError, match="is not passed the folder where the agent ran"):
        ProcessAgent(["ls"], reward=reward)
    ProcessAgent(["ls"], reward=reward, cwd=tmp_path)
    ProcessAgent(["ls"], reward=reward, files={"{judge}/check.py": "where = '{folder}'"})


# -- errors --------------------------------------------------------------------------------------


def test_a_command_or_reward_of_the_wrong_type_is_rejected() -> None:
    commands: list[Any] = ["ls -l", [], [1, 2], ["ls", None]]
    for command in commands:
        with pytest.raises(InvalidAgentError, match="expects the command as a list of strings"):
            ProcessAgent(command)
    rewards: list[Any] = ["exit_status", None, 1.0, [], ["ls", 1]]
    for reward in rewards:
        with pytest.raises(InvalidAgentError, match="expected 'exit', 'file', a command"):
            ProcessAgent(["ls"], reward=reward)


async def error_of(agent: ProcessAgent, task: object = NO_TASK, **options: Any) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await kit.play(agent, "yes", task=task, **options)
    return caught.value


async def test_the_error_for_a_program_that_cannot_start_includes_advice(tmp_path: Path) -> None:
    command = ["evert-no-such-program"]
    plain = await error_of(ProcessAgent(command))
    with_advice = await error_of(
        ProcessAgent(command, install="npm install -g evert-no-such-program")
    )
    (tmp_path / "script").write_text("no program")
    denied = await error_of(ProcessAgent([str(tmp_path / "script")]))

    assert isinstance(plain.__cause__, CommandError)
    assert "The program 'evert-no-such-program' was not found" in str(plain)
    assert "install it in a folder on the PATH, or pass its full path" in str(plain)
    assert "To fix this: npm install -g evert-no-such-program." in str(with_advice)
    assert "wrote last" not in str(with_advice)
    assert "could not be started: [Errno 13] Permission denied" in str(denied)


REFUSED = """
from urllib.error import HTTPError
try:
    ask(*sys.argv[1:])
except HTTPError as error:
    print(error.read().decode(), file=sys.stderr)
"""


async def test_the_error_for_a_command_that_fails_after_a_rejected_call_shows_both() -> None:
    models = {"judge": ScriptedPolicy(["yes"])}
    code_of_exit = f"import sys{REFUSED}    raise SystemExit(1)"
    unknown = await error_of(python(code_of_exit, "x", "gpt-4o"), models=models)
    code = f"import sys; ask('Hi'); sys.argv.append(chr(0xD800)){REFUSED}    raise SystemExit(2)"
    refused = await error_of(python(code))

    assert "before it called the model" in str(unknown)
    assert "gpt-4o" in str(unknown)
    assert "after 1 model calls" in str(refused)
    assert "exited with status 2 after a rejected model call: " in str(refused)
    assert "wrote last: stderr '{" in str(refused)


async def test_a_command_whose_last_prompt_is_too_long_ends_with_a_context_overflow() -> None:
    options: Any = {"context_length": 200, "context_overflow_reward": -0.5}
    for status in (0, 1):
        code = f"import sys; ask('Hi'){REFUSED}    raise SystemExit({status})"
        last = (await kit.play(python(code, "long " * 200), "yes", **options)).transitions[-1]
        assert (last.reward, last.logs["exit_status"]) == (-0.5, status)
        assert last.metrics["stop/context_overflow"] == 1.0
    copes = python(f"import sys{REFUSED}\nask('Hi')", "long " * 200)
    last = (await kit.play(copes, "yes", **options)).transitions[-1]
    assert last.reward == last.metrics["stop/completed"] == 1.0


async def test_the_timeout_error_for_a_hanging_command_shows_its_last_output() -> None:
    code = "import sys, time; ask('x'); print('waiting for a lock', file=sys.stderr, flush=True)"
    last = f"The command {sys.executable!r} wrote last: stderr 'waiting for a lock'"
    with pytest.raises(AgentTimeoutError, match=re.escape(last)):
        await kit.play(python(f"{code}; time.sleep(600)"), "yes", agent_timeout=2)


async def test_the_error_for_a_failing_reward_function_shows_the_commands_output() -> None:
    def score(result: ProcessResult, task: Any) -> float:
        return float((result.folder / "made").read_text())

    code = "import sys; ask('x'); print('gave up', file=sys.stderr); sys.exit(4)"
    error = await error_of(python(code, reward=score))

    assert isinstance(error.__cause__, FileNotFoundError)
    assert f"The command {sys.executable!r} wrote last: stderr 'gave up'" in str(error)


def test_a_process_agent_pickles() -> None:
    agent = ProcessAgent(["ls", "{task}"], reward="file", env={"A": "b"}, cwd=os.curdir)

    assert json.dumps(vars(pickle.loads(pickle.dumps(agent)))) == json.dumps(vars(agent))
