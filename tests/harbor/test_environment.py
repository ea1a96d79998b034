"""``Bubblewrap``: what an agent can see, do and leave behind, and which tasks are supported."""

import ctypes
import shutil
from pathlib import Path
from typing import Any

import pytest
from harbor.environments.base import SandboxBuildFailedError
from harbor.models.task.config import EnvironmentConfig
from tests.faults.escapes import CALLS
from tests.harbor.agents import Typist
from tests.harbor.conftest import TASKS, solution
from tests.kit import play, reward
from tinker_cookbook.rl.types import InitialObservationOverflow

from evert import AgentError, ChatAgentEnv
from evert.harbor import HarborAgent
from evert.trainers.integrations.harbor.plan import ImagePlan

TASK = TASKS / "sum-csv"


async def typed(*lines: str, task: Path = TASK, **options: Any) -> list[tuple[int, str]]:
    """Run command lines in an environment; return the status and output of each one."""
    agent = {"import_path": "tests.harbor.agents:Typist", "kwargs": {"lines": [*lines]}}
    env = ChatAgentEnv(HarborAgent(agent, "bubblewrap", **options), str(task))
    await env.initial_observation()  # the agent makes no call
    await env.close()
    return [(one.return_code, (one.stdout + one.stderr).strip()) for one in Typist.seen]


async def test_a_line_runs_in_the_tasks_folder_and_its_background_processes_keep_running() -> None:
    assert await typed(
        "pwd; ls; echo $HOME",
        "(while true; do date > /tmp/new; mv /tmp/new /tmp/now; sleep 0.05; done) &",
        "sleep 0.3; test -s /tmp/now && kill -9 $$",
        "echo said; echo wrong >&2; exit 7",
        "no-such-program",
        "cd /elsewhere",
        "a\0b",
    ) == [
        (0, "/app\nsales.csv\n/root"),
        (0, ""),
        (137, ""),
        (7, "said\nwrong"),
        (127, "bash: line 1: no-such-program: command not found"),
        (1, "bash: line 1: cd: /elsewhere: No such file or directory"),
        (127, "embedded null byte"),
    ]


async def test_an_agent_can_access_neither_the_verifier_nor_this_machine(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of this machine")
    session, name, add_key = ctypes.c_long(-3), tmp_path.name, CALLS["ADD_KEY"]
    ctypes.CDLL(None).syscall(add_key, b"user", name.encode(), b"key", 3, session)
    found = f"libc.syscall({add_key + 2}, 10, ctypes.c_long(-3), b'user', b'{name}', 0) > 0"
    assert eval(found, {"libc": ctypes.CDLL(None), "ctypes": ctypes})
    seen = await typed(
        "ls /tests /solution /logs/verifier /root /home",
        f"cat {tmp_path}/secret {TASK}/tests/test.sh",
        "touch /usr/bin/mine /etc/mine",
        "python3 -c \"import socket; socket.create_connection(('127.0.0.1', 22), 2)\"",
        "python3 -c \"import socket; socket.create_connection(('192.0.2.1', 80), 2)\"",
        "ps -e -o args= | grep -c [p]ytest",
        f'python3 -c "import ctypes; libc = ctypes.CDLL(None); assert {found}"',
        "env | cut -d = -f 1 | sort | tr '\\n' ' '",
    )

    assert "test.sh" not in seen[0][1]
    assert [status for status, _ in seen[1:7]] == [1] * 6
    assert "of this machine" not in seen[1][1]
    assert "Connection refused" in seen[3][1]
    assert "Network is unreachable" in seen[4][1]
    assert "AssertionError" in seen[6][1]
    assert "EVERT_MODEL" in seen[7][1].split()
    assert not {"USER", "PYENV_ROOT", "PYTEST_CURRENT_TEST"} & {*seen[7][1].split()}


LEFT = {
    "a link to this machine's files": "ln -s /etc/hostname total.txt",
    "a named pipe": "mkfifo total.txt",
    "a folder": "mkdir total.txt",
    "a file without an end": "truncate -s 1T total.txt; ln -s /dev/zero total.txt",
}


@pytest.mark.parametrize("what", LEFT)
async def test_files_and_processes_left_by_an_agent_cannot_earn_a_reward(what: str) -> None:
    agent = {"import_path": "tests.harbor.agents:Typist", "kwargs": {"lines": [LEFT[what]]}}
    env = ChatAgentEnv(HarborAgent(agent, "bubblewrap"), str(TASK))
    ended = await env.initial_observation()
    await env.close()

    assert isinstance(ended, InitialObservationOverflow)
    assert ended.reward == 0.0


async def test_an_agent_that_kills_the_sandbox_fails() -> None:
    with pytest.raises(AgentError, match="The sandbox of sum-csv is gone"):
        await typed("kill -9 $(pgrep -f inside.py)", "true")


def copied(task: Path, more: str) -> Path:
    """Copy the task, with additional lines in its ``task.toml``."""
    shutil.copytree(TASK, task)
    (task / "task.toml").write_text(f"{(task / 'task.toml').read_text()}\n{more}")
    return task


async def test_a_program_without_network_access_can_still_call_the_model(tmp_path: Path) -> None:
    task = copied(tmp_path / "offline", '[environment]\nnetwork_mode = "no-network"\n')
    agent = HarborAgent("tests.harbor.agents:Program", environment="bubblewrap")
    played = await play(agent, solution(TASK), task=str(task))

    assert len(played.transitions) == 1
    assert reward(played) == 1.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"kwargs": {"readonly": ["/nowhere"]}},
            r"the readonly= path /nowhere does not exist",
        ),
        ({"mounts": [{"type": "bind", "source": "/x", "target": "/y"}]}, "has no mounts="),
    ],
)
async def test_an_unsupported_option_of_the_sandbox_is_refused(fields: Any, message: str) -> None:
    agent = HarborAgent("nop", {"type": "bubblewrap", **fields})
    with pytest.raises(AgentError, match=message):
        await play(agent, task=str(TASK))


async def test_a_program_that_makes_no_call_fails() -> None:
    agent = {"import_path": "tests.harbor.agents:Program", "env": {"PATH": "/nowhere"}}
    said = "ended before its agent called the model: NonZeroAgentExitCodeError"
    with pytest.raises(AgentError, match=said):
        await play(HarborAgent(agent, "bubblewrap"), task=str(TASK))


def plan(folder: Path, dockerfile: str, **config: Any) -> ImagePlan:
    (folder / "files").mkdir(exist_ok=True)
    (folder / "files/one.txt").write_text("one")
    (folder / "files/two.txt").write_text("two")
    (folder / "files/same.txt").symlink_to("two.txt")
    (folder / "Dockerfile").write_text(dockerfile)
    return ImagePlan.of("mine", folder, EnvironmentConfig(**config))


def test_files_and_variables_of_a_dockerfile_are_in_the_sandbox(tmp_path: Path) -> None:
    (tmp_path / "environment").mkdir()
    read = plan(
        tmp_path / "environment",
        "# a task\nFROM python:3.13 AS base\nLABEL a=b\nENV A=1 \\\n    B='two words'\n"
        "WORKDIR /app\nWORKDIR sub\nCOPY files ./all/\nCOPY files/one.txt renamed.txt\n"
        "COPY files/*.txt /data/\n"
        "COPY . /whole\n",
    )
    root = tmp_path / "root"
    root.mkdir()
    read.lay(root)

    assert str(read.workdir) == "/app/sub"
    assert read.variables == {"A": "1", "B": "two words"}
    assert {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()} >= {
        "app/sub/all/one.txt", "app/sub/all/two.txt", "app/sub/renamed.txt", "data/one.txt",
        "data/two.txt", "whole/Dockerfile", "whole/files/one.txt", "whole/files/same.txt",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("dockerfile", "config", "what"),
    [
        (
            "FROM debian\nRUN apt-get update && \\\n    apt-get install -y gcc",
            {},
            "RUN apt-get upd",
        ),
        ("FROM debian", {"docker_image": "mine:1"}, "docker_image = 'mine:1'"),
        ("FROM debian\nUSER nobody", {}, "USER nobody"),
        ("FROM debian\nCOPY --from=base /x /y", {}, "COPY --from=base /x /y"),
        ("FROM debian\nCOPY ../../secret /app/", {}, r"COPY \.\./\.\./secret, which is not in"),
        ("FROM debian\nCOPY nothing /app/", {}, "COPY nothing, which is not in"),
        (
            "FROM debian\nCOPY files /usr/share/mine",
            {},
            "COPY at /usr/share/mine, which the sandbox",
        ),
        ("FROM debian\nCOPY files /app/../tmp/x", {}, "COPY at /tmp/x, which the sandbox provides"),
        ("FROM debian\nWORKDIR /usr/src", {}, "the workdir at /usr/src, which the sandbox"),
        ("FROM debian\nENV A='1", {}, "ENV A='1: No closing quotation"),
        ("FROM debian\nCOPY", {}, "COPY: not enough values"),
        ("FROM debian\nCOPY up /app/", {}, r"COPY up, with a link that leads outside"),
        ("FROM debian\nCOPY away /app/", {}, r"COPY away, with a link that leads outside"),
        ("FROM debian\nCOPY to-up /app/", {}, r"COPY to-up, with a link that leads outside"),
        ("FROM debian\nENV PATH=/opt/x:$PATH", {}, r"ENV PATH=/opt/x:\$PATH"),
        ("FROM debian\nWORKDIR $HOME", {}, r"WORKDIR \$HOME"),
    ],
)
def test_the_error_names_a_task_that_needs_an_image(
    dockerfile: str, config: dict[str, Any], what: str, tmp_path: Path
) -> None:
    for name, leads in (("up", "../files"), ("away", "/tmp")):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "inner/link").symlink_to(leads)
    (tmp_path / "to-up").symlink_to("up")
    advice = r".*The task mine needs an image .*Run the task in a container \(environment=docker"
    with pytest.raises(SandboxBuildFailedError, match=f"(?s)(?={advice}).*{what}"):
        plan(tmp_path, dockerfile, **config)
