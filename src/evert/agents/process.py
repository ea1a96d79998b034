"""``ProcessAgent``: an agent that runs a command, such as ``["my-agent", "{task}"]`` or a script.

The command finds the model through the usual environment variables (``variables.py``). It runs in a
new folder with the given files, and all processes that it started are stopped when it exits
(``commands.py``). With ``sandbox``, it runs in a sandbox (``sandbox.py``) and can only access what
it needs. A reward command (the judge) runs after all of the agent's processes have exited, in a
folder that did not exist before. ``evert.agents`` contains ready-made agents for well-known
programs.
"""

import asyncio
import inspect
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias

from evert.bridge.errors import NEEDS_UNIX

if sys.platform == "win32":
    raise ImportError(f"An agent that runs a command {NEEDS_UNIX}")

from evert.agents.commands import (
    IN_HOME,
    IN_JUDGE,
    LOGGED_OUTPUT,
    LONGEST_VARIABLE,
    MARK,
    ProcessResult,
    Workplace,
    new_folder,
    read_left,
    room_of,
    task_text,
)
from evert.agents.sandbox import Sandbox
from evert.agents.sandboxed import IN_SANDBOX, SandboxChoice, check_choice, is_sandboxed, sandbox_of
from evert.agents.variables import addresses, harmless
from evert.bridge.clients.client import AgentClient
from evert.bridge.clients.http.server import Address
from evert.bridge.env.options import EnvOptions
from evert.bridge.episode.agent import NO_TASK, Outcome
from evert.bridge.errors import CommandError, InvalidAgentError, RewardError
from evert.bridge.redaction import keep_secret, redacted_end

LONGEST_REWARD = 2**16
"""Maximum size of a reward file (including metrics), in bytes."""

ProcessSetup: TypeAlias = Sequence[str] | Callable[[Path, Any], Any]
ProcessReward: TypeAlias = (
    Literal["exit", "file"] | Sequence[str] | Callable[[ProcessResult, Any], Any]
)


class ProcessAgent:
    """An agent that runs a command.

    The command, ``env`` and text ``files`` can contain placeholders. ``{task}`` is the task (as
    JSON unless it is a string), ``{task[name]}`` is a part of the task, ``{folder}`` and ``{home}``
    are the episode's two folders, and ``{model}``, ``{base_url}``, ``{root_url}`` and
    ``{api_key}`` specify how to call the model. The command also gets environment variables: the
    address of the model (see ``addresses``), ``EVERT_TASK_FILE``, which is the path of a file that
    contains the task, and ``EVERT_TASK``, which is its text (not set if it is longer than 100 kB or
    contains a null character or a lone surrogate). ``HOME`` and ``TMPDIR`` are episode folders.

    Args:
        command: Program and arguments.
        files: Maps file names to text, bytes, or the ``Path`` of a file or folder to copy. The
            files are created in the folder before the command runs. ``"{home}/name"`` is created in
            the home, which is useful for configuration, and ``"{judge}/name"`` in the reward
            command's folder.
        setup: A command, or a function that takes the folder and the task, to run in the folder
            before the command.
        reward: How to score the episode. A reward command gives 1.0 for exit status 0 and 0.0
            otherwise. It runs after all of the agent's processes have exited, with a new folder and
            home; its ``{folder}`` is where the agent ran. A function that takes the
            ``ProcessResult`` and the task is called at the same point, and can return anything that
            an agent can return. If the command scores itself and does not run code written by the
            policy, use "exit" (1.0 for exit status 0, 0.0 otherwise) or "file", which reads a
            number, or JSON with "reward" and "metrics", from the path in ``EVERT_REWARD_FILE``.
        cwd: Where to run (default: a new folder for each episode, which is removed afterwards).
        env: Additional environment variables. The value None removes a variable. ``"{env[NAME]}"``
            in a value is replaced by the trainer's variable NAME when the episode starts.
        host: Interface on which to serve the model. Containers cannot reach loopback.
        sandbox: Whether to run the command and the reward command in a sandbox. They can then read
            the system and the programs they need, write to the episode's folders and ``cwd``, and
            call the model, but have no access to your other files, the network or your processes.
            True requires a sandbox, and raises an error if none can be created. False runs them as
            your user. None, which is the default of the ready-made agents, uses a sandbox if
            possible (on Linux with bubblewrap) and if ``host`` is loopback. A list is like True and
            makes its paths readable. The setup command or function always runs outside the sandbox.
        command_in_sandbox: The command to use in a sandbox (default: ``command``). For programs
            that need a flag to disable their built-in sandbox.
        install: How to install the program. This text is shown if the program is missing.
        env_options: Env options that the program needs. The user's options take precedence.

    Functions run in a thread, which cannot be killed like a command, so set a timeout for anything
    they wait for. If there is no task, the functions get None instead.

    Raises:
        InvalidAgentError: A command is not a non-empty list of strings; ``reward``, ``setup``,
            ``sandbox`` or a file is invalid; a file would be outside its folder; or, without
            ``cwd``, neither the reward command nor its files contain ``{folder}``.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        files: Mapping[str, str | bytes | Path] | None = None,
        setup: ProcessSetup | None = None,
        reward: ProcessReward = "exit",
        cwd: str | Path | None = None,
        env: Mapping[str, str | None] | None = None,
        host: str = "127.0.0.1",
        sandbox: SandboxChoice = False,
        command_in_sandbox: Sequence[str] | None = None,
        install: str = "",
        env_options: EnvOptions | None = None,
    ) -> None:
        if not _is_command(command) or not _is_command(command_in_sandbox or ["none"]):
            raise InvalidAgentError(
                f"ProcessAgent expects the command as a list of strings, got {command!r}. To run a "
                'shell command, use ["bash", "-c", line].'
            )
        if reward not in ("exit", "file") and not callable(reward) and not _is_command(reward):
            raise InvalidAgentError(
                f"reward={reward!r}; expected 'exit', 'file', a command as a list of strings, or a "
                "function that takes (result, task)."
            )
        if setup is not None and not callable(setup) and not _is_command(setup):
            raise InvalidAgentError(
                f"setup={setup!r}; expected a command as a list of strings, or a function that "
                "takes (folder, task)."
            )
        self.command = list(command)
        self.files = _check_files(files or {})
        if cwd is None:  # a judge may already know the path of a fixed ``cwd``
            _check_judge(reward, self.files)
        self.setup = setup
        self.reward = reward
        self.cwd = cwd
        self.env = dict(env or {})
        self.host = host
        self.sandbox = check_choice(sandbox, host)
        self.command_in_sandbox = [*(command if command_in_sandbox is None else command_in_sandbox)]
        self.install = install
        self.env_options = env_options or EnvOptions()

    async def __call__(self, client: AgentClient, task: Any = NO_TASK) -> Any:
        """Run the command until it exits, and return the reward.

        Raises:
            CommandError: The command could not be started, the setup failed, or no sandbox could be
                created. Also raised if the command failed (its exit status was not 0) without
                calling the model, or after its last call had been rejected.
            openai.BadRequestError: The command's last prompt was too long.
            RewardError: The command did not write a reward, or the reward cannot be read.
        """
        async with new_folder() as scratch, self._serve(client) as address:
            place = self._place(client, address, task, scratch)
            with _report_last_words(client, place):
                await asyncio.to_thread(place.lay, self.files)
                await self._set_up(place)
                command = self.command if place.sandbox is None else self.command_in_sandbox
                result = await place.run(command, "command", place.sandbox)
                _log(client, result, "exit_status", "stdout", "stderr")
                self._check_end(result, client, address)
                return await self._reward(result, place, client, address)

    @asynccontextmanager
    async def _serve(self, client: AgentClient) -> AsyncIterator[Address]:
        """Serve the model (on a Unix socket if the commands run in a sandbox)."""
        sandboxed = await asyncio.to_thread(is_sandboxed, self.sandbox, self.host)
        client.metric("sandboxed", float(sandboxed))
        if not sandboxed:
            yield client.serve(self.host)
            return
        with tempfile.TemporaryDirectory(prefix="evert-") as folder:  # commands cannot write to it
            yield client.serve(f"{folder}/model")

    def _place(
        self,
        client: AgentClient,
        address: Address,
        task: Any,
        scratch: Path,
        agent_place: Workplace | None = None,
    ) -> Workplace:
        outside = self.cwd is not None and agent_place is None
        folder = Path(self.cwd or "").resolve() if outside else scratch / "work"
        home, temporary = scratch / "home", scratch / "tmp"
        if address.socket is not None and outside and scratch.is_relative_to(folder):
            raise InvalidAgentError(
                f"cwd={str(self.cwd)!r} contains {scratch.parent}, where evert creates folders "
                "that commands must not change. Choose a different cwd=..., or set TMPDIR."
            )
        for path in (folder, home, temporary):
            path.mkdir(parents=True, exist_ok=True)
        values = {
            "model": client.model,
            "base_url": address.base_url,
            "root_url": address.root_url,
            "api_key": address.api_key,
            "folder": str(agent_place.folder if agent_place else folder),
            "home": str(home),
        }
        socket_folder = [] if address.socket is None else [Path(address.socket).parent]
        folders = [scratch, *(agent_place.scratch if agent_place else socket_folder)]
        rooms = {IN_JUDGE if agent_place else "": folder, IN_HOME: home}
        place = Workplace(folders, folder, rooms, task, values, install=self.install)
        user_env = {
            name: text if text is None else place.fill(text, os.environ)
            for name, text in self.env.items()
        }
        for name, text in user_env.items():
            if text is not None and text == self.env[name]:
                keep_secret(name, text)
        env: dict[str, str | None] = {
            **harmless(os.environ),
            "HOME": str(home),
            "TMPDIR": str(temporary),
            **addresses(address, client.model, self.host),
            **_task_variables(task, scratch / "task"),
            **({"EVERT_REWARD_FILE": str(scratch / "reward")} if self.reward == "file" else {}),
            MARK: str(scratch),
            **user_env,
        }
        place.env = {name: text for name, text in env.items() if text is not None}
        place.sandbox = self._sandbox(address, [scratch, folder], agent_place)
        return place

    def _sandbox(
        self, address: Address, writable: Sequence[Path], agent_place: Workplace | None
    ) -> Sandbox | None:
        judge = [*map(str, self.reward)] if isinstance(self.reward, (list, tuple)) else []
        command = self.command_in_sandbox if agent_place is None else judge
        if agent_place is not None and agent_place.sandbox is not None:
            writable = [*writable, *agent_place.sandbox.writable.values()]
        user_env = {name: text for name, text in self.env.items() if text is not None}
        # don't show the folders in the trainer's PYTHONPATH, which may contain anything
        variables = {**harmless(os.environ), "PYTHONPATH": "", **user_env}
        return sandbox_of(self.sandbox, command, judge, variables, writable, address)

    async def _set_up(self, place: Workplace) -> None:
        if callable(self.setup):
            await _call(self.setup, place.folder, _task_or_none(place.task))
        elif self.setup is not None:
            result = await place.run(self.setup, "setup")
            if result.status != 0:
                raise CommandError(
                    f"The setup command {self.setup[0]!r} exited with status {result.status}, so "
                    "the agent was not started."
                )

    def _check_end(self, result: ProcessResult, client: AgentClient, address: Address) -> None:
        """Raise if the prompt was too long, or if the command failed because it got no reply."""
        inboxes = client._endpoint.episode.inboxes
        latest = [inbox.latest for inbox in inboxes if inbox.latest is not None]
        refusal = next((call.refusal for call in latest if call.refusal is not None), None)
        if refusal is not None and getattr(refusal, "code", None) == "context_length_exceeded":
            raise refusal  # regardless of the exit status
        ending = f"The command {self.command[0]!r} exited with status {result.status}"
        if result.status != 0 and refusal is not None:
            raise CommandError(f"{ending} after a rejected model call: {refusal}") from refusal
        if result.status != 0 and not latest:
            within = "" if address.socket is None else f" {IN_SANDBOX}"
            raise CommandError(f"{ending} before it called the model.{within}")

    async def _reward(
        self, result: ProcessResult, place: Workplace, client: AgentClient, address: Address
    ) -> Any:
        if self.reward == "exit":
            return float(result.status == 0)
        if self.reward == "file":
            return await asyncio.to_thread(self._read_reward, result, place.scratch[0])
        if callable(self.reward):
            return await _call(self.reward, result, _task_or_none(place.task))
        async with new_folder() as scratch:
            judge = self._place(client, address, place.task, scratch, place)
            with _report_last_words(client, judge):
                await asyncio.to_thread(judge.lay, self.files)
                verdict = await judge.run(self.reward, "reward", judge.sandbox)
        _log(client, verdict, "reward_status", "reward_stdout", "reward_stderr")
        return float(verdict.status == 0)

    def _read_reward(self, result: ProcessResult, scratch: Path) -> Any:
        try:
            value = json.loads(read_left(scratch, "reward", LONGEST_REWARD).decode())
        except (OSError, ValueError, RecursionError) as error:
            raise RewardError(
                f"The command {self.command[0]} did not write a reward to EVERT_REWARD_FILE "
                f"({error}). It exited with status {result.status}."
            ) from error
        if isinstance(value, dict):
            return Outcome(value.get("reward"), value.get("metrics") or {})
        return value


def _task_variables(task: Any, file: Path) -> dict[str, str]:
    text = task_text(task)
    content = text.encode(errors="replace")
    file.write_bytes(content)
    fits = len(content) <= LONGEST_VARIABLE and "\0" not in text and content.decode() == text
    return {**({"EVERT_TASK": text} if fits else {}), "EVERT_TASK_FILE": str(file)}


def _log(client: AgentClient, result: ProcessResult, status: str, out: str, err: str) -> None:
    outputs = {out: result.stdout, err: result.stderr}
    ends = {name: redacted_end(text, LOGGED_OUTPUT) for name, text in outputs.items()}
    client.log(**{status: result.status}, **ends)


def _is_command(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, (str, bytes))
        and len(value) > 0
        and all(isinstance(argument, str) for argument in value)
    )


def _check_files(files: Mapping[str, str | bytes | Path]) -> dict[str, str | bytes | Path]:
    """Validate the files, and check that all of them are inside the episode's folders."""
    for name, content in files.items():
        path = PurePath(room_of(name)[1])
        if path.is_absolute() or ".." in path.parts:
            raise InvalidAgentError(
                f"The file {name!r} would be outside the episode's folder; expected a relative "
                "path without '..', which may start with '{home}/' or '{judge}/'."
            )
        if not isinstance(content, (str, bytes, Path)):
            raise InvalidAgentError(
                f"The file {name!r} has type {type(content).__name__}; expected text, bytes, or "
                "the Path of a file or folder to copy."
            )
        if isinstance(content, Path) and not content.exists():
            raise InvalidAgentError(
                f"The file {name!r} should be copied from {content}, which does not exist."
            )
    return dict(files)


def _check_judge(reward: ProcessReward, files: Mapping[str, str | bytes | Path]) -> None:
    """Reject a reward command that is not given the agent's folder, which it has to score."""
    if callable(reward) or reward in ("exit", "file"):
        return
    texts = [*reward, *(text for name, text in files.items() if room_of(name)[0] == IN_JUDGE)]
    if not any("{folder}" in str(text) for text in texts):
        raise InvalidAgentError(
            f"reward={reward!r} is not passed the folder where the agent ran. The reward command "
            "runs in a different folder, which is created after the agent has finished. Add "
            "'{folder}' to its arguments, for example reward=['python3', 'check.py', '{folder}'] "
            "with files={'{judge}/check.py': ...}."
        )


@contextmanager
def _report_last_words(client: AgentClient, place: Workplace) -> Iterator[None]:
    """Add the command's last output to the error that stops an episode."""
    try:
        yield
    except BaseException:  # includes cancellation by a timeout
        client._endpoint.episode.hints.append(lambda: place.last_words)
        raise


async def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    value = await asyncio.to_thread(function, *arguments)
    return await value if inspect.isawaitable(value) else value


def _task_or_none(task: Any) -> Any:
    return None if task is NO_TASK else task
