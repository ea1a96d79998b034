"""``ProcessAgent``: an agent that is a command, ``["my-agent", "{task}"]`` or a script.

The command finds the model through the usual environment variables (``variables.py``). It runs in a
new folder with the given files, and every process that it started ends with it (``commands.py``).
With ``sandbox`` it runs in a sandbox (``sandbox.py``), and sees no more than it needs. A reward
command (the judge) runs after all processes of the agent have ended, in a folder made only then.
``evert.agents`` has ready-made agents for well-known programs.
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
    raise ImportError(f"An agent that is a command {NEEDS_UNIX}")

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
"""Most bytes of the reward file that a command writes, including metrics."""

ProcessSetup: TypeAlias = Sequence[str] | Callable[[Path, Any], Any]
ProcessReward: TypeAlias = (
    Literal["exit", "file"] | Sequence[str] | Callable[[ProcessResult, Any], Any]
)


class ProcessAgent:
    """An agent that runs a command.

    Placeholders in the command, in ``env`` and in text ``files`` are filled in: ``{task}`` with the
    task (text unchanged, anything else as JSON), ``{task[name]}`` with a part of it, ``{folder}``
    and ``{home}`` with the episode's two folders, and ``{model}``, ``{base_url}``, ``{root_url}``
    and ``{api_key}``. Environment variables give the model's address (see ``addresses``) and the
    task: ``EVERT_TASK_FILE`` is the path of a file with the task, and ``EVERT_TASK`` its text,
    unless that is longer than 100 kB or has a null character or an unpaired surrogate. ``HOME`` and
    ``TMPDIR`` are folders of the episode.

    Args:
        command: Program and arguments.
        files: Files by name: text, bytes, or the ``Path`` of a file or folder to copy. They are put
            into the folder before the command runs. ``"{home}/name"`` goes to the home, for
            configuration that is no part of the agent's work; ``"{judge}/name"`` goes to the folder
            of the reward command.
        setup: Run in the folder before the command: another command, or a function of the folder
            and the task.
        reward: How to score the episode. A reward command gives 1.0 for exit status 0, else 0.0. It
            runs after all processes of the agent have ended, with a new folder and home; its
            ``{folder}`` is where the agent ran. A function of the ``ProcessResult`` and the task is
            called at the same point, and returns what an agent returns. For a ``command`` that
            scores itself, and does not run the policy's code: "exit" gives 1.0 for exit status 0,
            else 0.0; "file" reads a number, or JSON with "reward" and "metrics", from the file that
            ``EVERT_REWARD_FILE`` names.
        cwd: Where to run. None: a new folder for each episode, removed afterwards.
        env: Further environment variables; the value None removes a variable. ``"{env[NAME]}"`` in
            a value is replaced by the trainer's variable NAME when the episode begins.
        host: Interface on which the model is served (not loopback for containers).
        sandbox: Whether the command and the reward command run in a sandbox. They can then read the
            system and the programs they need, write the episode's folders and ``cwd``, and call the
            model; the rest of your files, network and processes is out of reach. True: always, and
            an error where no sandbox can be made. False: never; they run as your user. None, the
            ready-made agents' default: if a sandbox can be made (Linux, bubblewrap) and ``host`` is
            loopback. A list: like True, and its paths are readable. The setup runs outside.
        command_in_sandbox: The command to run in a sandbox, for a program that must be told not to
            make its own sandbox; None: ``command``.
        install: How to install the program, for the error message when it is missing.
        env_options: Env options that suit the program; the user's options take precedence.

    Functions run in a thread, which cannot be killed like a command, so set a time limit on
    whatever they wait for. Without a task, they get None in its place.

    Raises:
        InvalidAgentError: A command is not a non-empty list of strings; ``reward``, ``setup``,
            ``sandbox`` or a file is invalid; a reward command is not told where the agent ran; or a
            file would lie outside of its folder.
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
                f"A ProcessAgent takes the command as a list of strings, got {command!r}. For a "
                'line of shell: ["bash", "-c", line].'
            )
        if reward not in ("exit", "file") and not callable(reward) and not _is_command(reward):
            raise InvalidAgentError(
                f"reward={reward!r}; expected 'exit', 'file', a command as a list of strings, or a "
                "function (result, task)."
            )
        if setup is not None and not callable(setup) and not _is_command(setup):
            raise InvalidAgentError(
                f"setup={setup!r}; expected a command as a list of strings, or a function "
                "(folder, task)."
            )
        self.command = list(command)
        self.files = _check_files(files or {})
        if cwd is None:  # with a fixed ``cwd``, the judge may know where it is
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
        """Run the command to its end, and return its reward.

        Raises:
            CommandError: The command cannot be started; or its exit status was not 0, and it had
                made no model call or its last one was refused; or the setup failed; or no sandbox
                can be made here.
            openai.BadRequestError: The command's last prompt was too long.
            RewardError: The command left no reward, or one that cannot be read.
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
        """Serve the model; on a Unix socket for commands that run in a sandbox."""
        sandboxed = await asyncio.to_thread(is_sandboxed, self.sandbox, self.host)
        client.metric("sandboxed", float(sandboxed))
        if not sandboxed:
            yield client.serve(self.host)
            return
        with tempfile.TemporaryDirectory(prefix="evert-") as folder:  # no command may write here
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
                f"cwd={str(self.cwd)!r} contains {scratch.parent}, where episodes and judges have "
                "their folders: a command could write there. Choose another cwd=, or set TMPDIR."
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
        # the trainer's PYTHONPATH names source folders, which may hold anything
        variables = {**harmless(os.environ), "PYTHONPATH": "", **user_env}
        return sandbox_of(self.sandbox, command, judge, variables, writable, address)

    async def _set_up(self, place: Workplace) -> None:
        if callable(self.setup):
            await _call(self.setup, place.folder, _task_or_none(place.task))
        elif self.setup is not None:
            result = await place.run(self.setup, "setup")
            if result.status != 0:
                raise CommandError(
                    f"The setup {self.setup[0]!r} ended with status {result.status}, so the agent "
                    "was not started."
                )

    def _check_end(self, result: ProcessResult, client: AgentClient, address: Address) -> None:
        """Raise if the ending must not be scored: the prompt was too long, or the start failed."""
        inboxes = client._endpoint.episode.inboxes
        latest = [inbox.latest for inbox in inboxes if inbox.latest is not None]
        refusal = next((call.refusal for call in latest if call.refusal is not None), None)
        if refusal is not None and getattr(refusal, "code", None) == "context_length_exceeded":
            raise refusal  # whatever the exit status
        ending = f"The command {self.command[0]!r} ended with status {result.status}"
        if result.status != 0 and refusal is not None:
            raise CommandError(f"{ending} when its model call was refused: {refusal}") from refusal
        if result.status != 0 and not latest:
            within = "" if address.socket is None else f" {IN_SANDBOX}"
            raise CommandError(f"{ending} before it made a model call.{within}")

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
                f"The command {self.command[0]} left no reward in EVERT_REWARD_FILE ({error}); it "
                f"ended with status {result.status}."
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
    """Check the files, and that no name leads out of the episode's folders."""
    for name, content in files.items():
        path = PurePath(room_of(name)[1])
        if path.is_absolute() or ".." in path.parts:
            raise InvalidAgentError(
                f"The file {name!r} would lie outside of the episode's folder; expected a relative "
                "path without '..', or one that begins with '{home}/' or '{judge}/'."
            )
        if not isinstance(content, (str, bytes, Path)):
            raise InvalidAgentError(
                f"The file {name!r} is of type {type(content).__name__}; expected its text, its "
                "bytes, or the Path of a file or folder to copy."
            )
        if isinstance(content, Path) and not content.exists():
            raise InvalidAgentError(
                f"The file {name!r} is to be copied from {content}, which does not exist."
            )
    return dict(files)


def _check_judge(reward: ProcessReward, files: Mapping[str, str | bytes | Path]) -> None:
    """Refuse a reward command that does not get the agent's folder, as it would find nothing."""
    if callable(reward) or reward in ("exit", "file"):
        return
    texts = [*reward, *(text for name, text in files.items() if room_of(name)[0] == IN_JUDGE)]
    if not any("{folder}" in str(text) for text in texts):
        raise InvalidAgentError(
            f"reward={reward!r} does not say where the agent ran: the command runs in another "
            "folder, made after the agent has ended. Expected '{folder}' among its arguments: "
            "reward=['python3', 'check.py', '{folder}'] with files={'{judge}/check.py': ...}."
        )


@contextmanager
def _report_last_words(client: AgentClient, place: Workplace) -> Iterator[None]:
    """Add the command's last output to the error that ends an episode."""
    try:
        yield
    except BaseException:  # a timeout cancels the agent
        client._endpoint.episode.hints.append(lambda: place.last_words)
        raise


async def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    value = await asyncio.to_thread(function, *arguments)
    return await value if inspect.isawaitable(value) else value


def _task_or_none(task: Any) -> Any:
    return None if task is NO_TASK else task
