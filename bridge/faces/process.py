"""``ProcessAgent``: an agent that is a command, ``["claude", "-p", "{task}"]`` or a script.

The command finds the model where it looks for any: ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``,
``ANTHROPIC_BASE_URL`` and ``ANTHROPIC_API_KEY`` lead to its rollout. It runs in a folder of its
own, and its whole process tree is killed when it has ended or its Env is closed.
"""

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import psutil

from evert.bridge.agent import NO_TASK, Outcome
from evert.bridge.errors import InvalidAgentError, RewardError
from evert.bridge.faces.client import AgentClient
from evert.bridge.faces.server import Address

KEPT_OUTPUT = 4000
"""Characters of the end of each output that go to the transition's logs."""


@dataclass(frozen=True)
class ProcessResult:
    """A command that has ended.

    Attributes:
        status: Exit status; negative: the signal that ended it.
        stdout: What it wrote.
        stderr: What it wrote to the other.
        folder: Where it ran; its files are still there.
    """

    status: int
    stdout: str
    stderr: str
    folder: Path


ProcessReward: TypeAlias = Literal["exit", "file"] | Callable[[ProcessResult, Any], Any]


class ProcessAgent:
    """An agent that runs a command.

    Args:
        command: Program and arguments. In them ``{task}`` is replaced by the task (text as it is,
            anything else as JSON), and ``{model}``, ``{base_url}``, ``{root_url}`` and
            ``{api_key}`` by what they say; all of it is in the environment as well (``environment``
            and ``EVERT_TASK``).
        reward: "exit": 1.0 for exit status 0, else 0.0. "file": what the command writes to the file
            named by ``EVERT_REWARD_FILE``: a number, or JSON with "reward" and "metrics". Or a
            function of the ``ProcessResult`` and the task that returns what an agent returns.
        cwd: Where to run. None: a new folder an episode, removed after it.
        env: Further environment variables.
        host: Interface on which the model is served (another than loopback for containers).

    Raises:
        InvalidAgentError: The command is no non-empty list of strings, or ``reward`` is none.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        reward: ProcessReward = "exit",
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        if isinstance(command, str) or not command or not all(isinstance(c, str) for c in command):
            raise InvalidAgentError(
                f"A ProcessAgent takes the command as a list of strings, got {command!r}. For a "
                'line of shell: ["bash", "-c", line].'
            )
        if reward not in ("exit", "file") and not callable(reward):
            raise InvalidAgentError(
                f"reward={reward!r}; expected 'exit', 'file' or a function (result, task)."
            )
        self.command = list(command)
        self.reward = reward
        self.cwd = cwd
        self.env = dict(env or {})
        self.host = host

    async def __call__(self, client: AgentClient, task: Any = NO_TASK) -> Any:
        """Run the command to its end, and return its reward.

        Raises:
            OSError: It cannot be started.
            RewardError: It leaves no reward, or none that can be read.
        """
        with tempfile.TemporaryDirectory(prefix="evert-") as scratch:
            folder = Path(self.cwd) if self.cwd is not None else Path(scratch, "work")
            folder.mkdir(parents=True, exist_ok=True)
            reward_file = Path(scratch, "reward")
            text = "" if task is NO_TASK else task if isinstance(task, str) else json.dumps(task)
            address = client.serve(self.host)
            env = {
                **os.environ,
                **environment(address, client.model, self.host),
                "EVERT_TASK": text,
                "EVERT_REWARD_FILE": str(reward_file),
                **self.env,
            }
            out, err = Path(scratch, "stdout"), Path(scratch, "stderr")
            command = [_filled(argument, address, client.model, text) for argument in self.command]
            async with _running(command, folder, env, out, err) as process:
                status = await process.wait()
            result = ProcessResult(status, _text(out), _text(err), folder)
            client.log(exit_status=status, stdout=result.stdout[-KEPT_OUTPUT:])
            client.log(stderr=result.stderr[-KEPT_OUTPUT:])
            return await self._reward(result, task, reward_file)

    async def _reward(self, result: ProcessResult, task: Any, file: Path) -> Any:
        if callable(self.reward):
            value = self.reward(result, None if task is NO_TASK else task)
            return await value if asyncio.iscoroutine(value) else value
        if self.reward == "exit":
            return float(result.status == 0)
        return self._written_reward(result, file)

    def _written_reward(self, result: ProcessResult, file: Path) -> Any:
        try:
            value = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise RewardError(
                f"The command {self.command[0]} left no reward in EVERT_REWARD_FILE ({error}); it "
                f"ended with status {result.status}. The end of its error output: "
                f"{result.stderr[-500:]!r}"
            ) from error
        if isinstance(value, dict):
            return Outcome(value.get("reward"), value.get("metrics") or {})
        return value


def _filled(argument: str, address: Address, model: str, task: str) -> str:
    values = {
        "{model}": model,
        "{base_url}": address.base_url,
        "{root_url}": address.root_url,
        "{api_key}": address.api_key,
        "{task}": task,  # last: what a task says is not filled in again
    }
    for name, value in values.items():
        argument = argument.replace(name, value)
    return argument


def environment(address: Address, model: str, host: str) -> dict[str, str]:
    """Environment variables that lead the usual SDKs and command lines to a rollout."""
    return {
        "OPENAI_BASE_URL": address.base_url,
        "OPENAI_API_KEY": address.api_key,
        "ANTHROPIC_BASE_URL": address.root_url,
        "ANTHROPIC_API_KEY": address.api_key,
        "ANTHROPIC_MODEL": model,
        "EVERT_MODEL": model,
        # a proxy would be asked for an address that only this machine has
        "NO_PROXY": ",".join(filter(None, [os.environ.get("NO_PROXY"), host])),
        "no_proxy": ",".join(filter(None, [os.environ.get("no_proxy"), host])),
    }


@asynccontextmanager
async def _running(
    command: list[str], folder: Path, env: Mapping[str, str], out: Path, err: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process in a session of its own, whose tree is gone in the end."""
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            env=dict(env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            await asyncio.to_thread(_kill_tree, process.pid, env["EVERT_REWARD_FILE"])
            await process.wait()


def _kill_tree(pid: int, mark: str) -> None:
    """Kill a session's processes, and those that left it but still carry its environment."""
    family = [process for process in psutil.process_iter() if _is_marked(process, mark)]
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    for process in family:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs([process for process in family if process.pid != pid], timeout=2)


def _is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.pid != os.getpid() and process.environ().get("EVERT_REWARD_FILE") == mark
    except psutil.Error:
        return False


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")
