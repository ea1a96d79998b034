"""Sandboxed commands: 90 attempts to escape, what still works, and machines with no sandbox.

The escape attempts are defined in ``tests/faults/escapes.py``. ``tests/faults/commands.py`` covers
what a sandboxed command leaves behind.
"""

import asyncio
import json
import os
import pty
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from benchmarks.processes import killed
from tests import kit
from tests.agents.test_process import ASK
from tests.faults import escapes
from tests.kit import Logs, Patch

from evert import AgentError, ChatAgentEnv, ProcessAgent
from evert.agents import sandboxed
from evert.agents.commands import ProcessResult
from evert.agents.installed import needed
from evert.agents.sandbox import Sandbox, sandbox_problem
from evert.bridge.errors import InvalidAgentError


@pytest.fixture(scope="module", autouse=True)
def _there_is_a_sandbox() -> None:
    kit.needs_sandbox()


# -- escape attempts -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, dict[str, str]]]:
    """Return the result of each escape attempt, with and without a sandbox."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "episodes").mkdir()
    with pytest.MonkeyPatch.context() as patch, escapes.outside(folder, folder / "episodes") as its:
        patch.setenv("HOME", its["HOME"])
        patch.setenv("USERS_SECRET_KEY", escapes.SECRET)
        patch.setattr(tempfile, "tempdir", its["EPISODES"])
        yield {
            True: asyncio.run(attempted(escapes.TABLE, its, sandbox=True)),
            False: asyncio.run(attempted(escapes.ANYWHERE, its, sandbox=False)),
        }


async def attempted(rows: dict[str, str], outside: dict[str, Any], sandbox: bool) -> dict[str, str]:
    command = [sys.executable, "-S", "-c", escapes.PROGRAM, "attempts"]
    files = {"attempts": json.dumps([outside, [*rows.items()]]).encode()}
    results: dict[str, str] = json.loads(await said_by(command, files=files, sandbox=sandbox))
    return results


async def said_by(command: list[str], **options: Any) -> str:
    outputs: list[str] = []

    def read(result: ProcessResult, task: Any) -> float:
        outputs.append(result.stdout)
        return 1.0

    agent = ProcessAgent(command, reward=read, **options)
    await ChatAgentEnv(agent).initial_observation()
    return outputs[0]


@pytest.mark.parametrize("name", escapes.TABLE)
def test_a_command_cannot_escape_its_sandbox(name: str, ended: dict[bool, dict[str, str]]) -> None:
    assert ended[True][name].startswith("fails")


@pytest.mark.parametrize("name", escapes.ANYWHERE)
def test_without_a_sandbox_it_can_escape(name: str, ended: dict[bool, dict[str, str]]) -> None:
    assert ended[False][name] == "succeeds"


# -- what works inside -----------------------------------------------------------------------------


async def logs_of(agent: ProcessAgent, *replies: Any, **options: Any) -> dict[str, Any]:
    last = (await kit.play(agent, *(replies or ("yes",)), **options)).transitions[-1]
    return {"reward": last.reward, **last.logs}


def python(code: str, *arguments: str, **options: Any) -> ProcessAgent:
    command = [sys.executable, "-c", f"{ASK}\nimport sys\n{code}", *arguments]
    return ProcessAgent(command, **{"sandbox": True, **options})


async def test_the_real_sdk_works_inside_with_concurrent_calls_and_long_streams() -> None:
    code = """
import concurrent.futures, openai, os
client, model = openai.OpenAI(), os.environ["EVERT_MODEL"]
def ask(text, **options):
    return client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": text}], **options
    )
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    print({len(done.choices[0].message.content) for done in pool.map(ask, ["x"] * 8)})
stream = ask("y" * 300_000, stream=True)
print(sum(len(chunk.choices[0].delta.content or "") for chunk in stream if chunk.choices))
"""
    logs = await logs_of(python(code), lambda prompt: "no " * 1000)

    assert logs["stdout"] == "{3000}\n3000\n", logs["stderr"]


@pytest.mark.parametrize("sandbox", [True, False])
async def test_the_first_transition_records_whether_it_ran_in_a_sandbox(sandbox: bool) -> None:
    trajectory = await kit.play(python("ask('x'); ask('y')", sandbox=sandbox))
    assert trajectory.transitions[0].metrics["sandboxed"] == float(sandbox)


async def test_folders_and_variables_are_the_same_with_and_without_a_sandbox() -> None:
    code = """
ask("x")
open("made", "w").write(open(os.environ["EVERT_TASK_FILE"]).read())
open(os.environ["TMPDIR"] + "/temporary", "w").close()
os.rename(os.environ["TMPDIR"] + "/temporary", os.environ["HOME"] + "/renamed")
print(sorted({*os.environ} - {"PWD"}), oct(os.umask(0)))
"""
    judge = [sys.executable, "-c", "import sys; print(open(sys.argv[1]).read())", "{folder}/made"]
    inside, plain = [
        await logs_of(python(code, sandbox=sandbox, reward=judge), task="do it")
        for sandbox in (True, False)
    ]
    assert inside["stdout"] == plain["stdout"], inside["stderr"]
    assert inside["reward_stdout"] == "do it\n"


async def test_a_path_that_is_too_long_for_a_socket_works(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert (await logs_of(python("ask('x')")))["reward"] == 1.0
    assert not [*long.glob("evert-*")]


@pytest.mark.parametrize(
    ("end", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 15)", 128 + 15)]
)
async def test_a_commands_exit_status_is_reported(end: str, status: Any) -> None:
    logs = await logs_of(python(f"ask('x'); {end}"))
    assert (logs["exit_status"], logs["reward"]) == (status, 0.0)


# -- finding programs ------------------------------------------------------------------------------

PROGRAMS = {  # path under the home directory: (program it resolves to, file that it reads)
    ".local/bin/pipx": (".local/share/pipx/venvs/agent/bin/agent", "../lib/python3/said"),
    ".local/bin/uv": (".local/share/uv/tools/agent/bin/agent", "../share/said"),
    ".local/bin/claude": (".local/share/claude/versions/2.1", "said"),
    ".npm-global/bin/npm": (".npm-global/lib/node_modules/@a/agent/cli", "../../other/said"),
    "node_modules/.bin/local": ("node_modules/agent/cli", "../other/said"),
    ".nvm/versions/node/v22/bin/node": (".nvm/versions/node/v22/bin/node", "../include/said"),
    "bin/own": ("bin/own", "said"),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("by_path", [False, True])
async def test_a_program_in_the_home_sees_only_its_own_installation(
    name: str, by_path: bool, tmp_path: Path, monkeypatch: Patch
) -> None:
    link, (target, file) = tmp_path / name, PROGRAMS[name]
    interpreter = tmp_path / "interpreters/bin/sh"
    for path, text in (
        (tmp_path / target, f"#!{interpreter}\ncat {(tmp_path / target).parent / file}\n"
            f"cd {tmp_path}; cat .ssh/key .local/share/keyrings/login; ls work; true"),
        ((tmp_path / target).parent / file, "runs"),
        (interpreter, '#!/bin/sh\nexec sh "$@"'),
        *((tmp_path / secret, "secret") for secret in
            (".ssh/key", ".local/share/keyrings/login", "work/secret")),
    ):  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    if not link.exists():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to("../" * name.count("/") + target)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", os.pathsep.join([str(link.parent), os.environ["PATH"]]))

    assert await said_by([str(link) if by_path else link.name], sandbox=True) == "runs"


async def test_paths_on_the_command_line_are_visible_but_read_only(tmp_path: Path) -> None:
    data, script = tmp_path / "data", tmp_path / "script.py"
    data.mkdir()
    (data / "said").write_text("runs")
    script.write_text(
        "import os, sys; data = sys.argv[1].removeprefix('data=')\n"
        "print(open(data + '/said').read(), sorted(os.listdir(os.path.dirname(sys.argv[0]))))\n"
        "open(data + '/new', 'w')"
    )
    (tmp_path / "work").mkdir()
    rows: list[tuple[str, Any]] = [(f"{data}", True), (f"data={data}", [data])]
    for argument, sandbox in rows:
        agent = ProcessAgent([sys.executable, str(script), argument], sandbox=sandbox)
        with pytest.raises(AgentError, match=r"Read-only file .*runs \['data', 'script.py'\]"):
            await kit.play(agent)


def test_exposing_a_file_does_not_expose_its_folder(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("certs/ca.pem", "certs/key.pem", "tool"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch(0o755)
    variables = {"SSL_CERT_FILE": f"{tmp_path}/certs/ca.pem", "PATH": f"{tmp_path}:/usr/bin:.:"}
    for command in (["./tool", str(tmp_path)], ["tool", "/"], ["no-tool", f"{tmp_path}/.."]):
        paths = {*needed(command, variables)} - {f"{tmp_path}/tool"}
        assert paths == {f"{tmp_path}/certs/ca.pem"}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_an_unreadable_folder_is_skipped(tmp_path: Path) -> None:
    program = tmp_path / "locked/bin/tool"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    program.parent.parent.chmod(0)
    if (child := os.fork()) == 0:
        if os.getuid() == 0:  # root can read everything
            os.setuid(65534)
        try:
            needed([str(program)], {"PATH": f"{program.parent}:/usr/bin"})
        finally:
            os._exit(int(sys.exc_info()[0] is not None))
    _, status = os.waitpid(child, 0)
    program.parent.parent.chmod(0o755)
    assert status == 0


async def test_the_working_folder_is_writable_except_for_programs_in_it(tmp_path: Path) -> None:
    venv.create(tmp_path / "tools/.venv")
    code = """
import os, sys
open("made", "w").write("x")
for name in ("tools/.venv", "tools"):
    try: os.rename(name, name + "-moved")
    except OSError as error: print(error)
os.mkdir(sys.prefix + "/lib/evil")
"""
    command = [f"{tmp_path}/tools/.venv/bin/python", "-c", code]
    agent = ProcessAgent(command, cwd=tmp_path, sandbox=True)
    refused = "Read-only .*/.venv/lib/evil.* busy: 'tools/.venv'.* busy: 'tools'"
    with pytest.raises(AgentError, match=refused):
        await kit.play(agent)
    assert (tmp_path / "made").read_text() == "x"


async def test_files_are_not_written_through_links_left_by_an_earlier_command(
    tmp_path: Path,
) -> None:
    project, outside, tree = [tmp_path / name for name in ("project", "outside", "tree")]
    for folder in (project, outside, tree / "deep"):
        folder.mkdir(parents=True)
    (outside / "file").write_text("mine")
    (tree / "deep/file").write_text("laid")
    leave = f"import os, shutil; name = NAME; shutil.rmtree(name); os.symlink('{outside}', name)"
    laid: dict[str, dict[str, str | bytes | Path]] = {
        "conf": {"conf/file": "laid"}, "tree": {"tree": tree}, "tree/deep": {"tree": tree},
    }  # fmt: skip
    for link, files in laid.items():
        code = leave.replace("NAME", repr(link))
        agent = ProcessAgent(
            [sys.executable, "-S", "-c", code],
            cwd=project, files=files, sandbox=True, reward=lambda result, task: 1.0,
        )  # fmt: skip
        await ChatAgentEnv(agent).initial_observation()
        with pytest.raises(AgentError, match=r"cannot be written to .*does not follow links"):
            await ChatAgentEnv(agent).initial_observation()
        (project / link).unlink()
    assert (outside / "file").read_text() == "mine"


async def test_an_agent_cannot_overwrite_its_judge_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text("import sys; sys.exit(1)")
    judge = [sys.executable, "-S", str(tmp_path / "check.py"), "{folder}"]
    code = "open('made', 'w').close(); open('check.py', 'w')"
    agent = ProcessAgent(
        [sys.executable, "-S", "-c", code], cwd=tmp_path, sandbox=True, reward=judge
    )
    with pytest.raises(AgentError, match=r"Read-only file system: .*check.py"):
        await ChatAgentEnv(agent).initial_observation()
    assert (tmp_path / "made").exists()


async def test_links_left_by_an_earlier_command_do_not_expose_their_targets(tmp_path: Path) -> None:
    project, secret = tmp_path / "project", tmp_path / "home/secret"
    project.mkdir()
    secret.mkdir(parents=True)
    (secret / "key").write_text("secret")
    code = f"import os; print(os.path.exists('{secret}/key')); os.symlink('{secret}', 'out')"
    command = [sys.executable, "-S", "-c", f"try: exec({code!r})\nexcept OSError: pass"]
    for _ in range(2):
        options: dict[str, Any] = {"cwd": project, "env": {"PATH": f"{project}/out:/usr/bin:/bin"}}
        output = await said_by([*command, f"{project}/out"], sandbox=True, **options)
        assert output == "False\n"


# -- machines without a sandbox --------------------------------------------------------------------


@pytest.fixture
def without(monkeypatch: Patch, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Replace bubblewrap with a one-line shell script, or remove it from PATH."""

    for tool in ("rm", "find", "sh"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))

    def another(line: str) -> None:
        if line:
            (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{line}")
            (tmp_path / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        sandbox_problem.cache_clear()
        sandboxed._say_once.cache_clear()

    yield another
    monkeypatch.undo()
    sandbox_problem.cache_clear()


REFUSED = "echo 'bwrap: No permissions to create a new namespace' >&2; exit 1"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "bubblewrap is not installed: run `apt install bubblewrap`"),
        (REFUSED, r"cannot create one here \(bwrap: No permissions.*`sysctl kernel\."),
        ("echo 'bwrap: Unknown option --disable-userns' >&2; exit 1", "must be version 0.8 or"),
        ("exit 7", r"cannot create one here \(status 7\)"),
    ],
)
async def test_an_unavailable_sandbox_is_an_error_or_a_single_warning(
    line: str, said: str, without: Callable[[str], None], caplog: Logs
) -> None:
    without(line)
    sandboxes: list[Any] = [True, [os.curdir]]
    for sandbox in sandboxes:
        with pytest.raises(AgentError, match=f"requires a sandbox, but .*{said}.*sandbox=False"):
            await kit.play(ProcessAgent([sys.executable, "-c", ""], sandbox=sandbox))
    for _ in range(2):
        agent = ProcessAgent([sys.executable, "-c", ""], sandbox=None)
        end: Any = await ChatAgentEnv(agent).initial_observation()
        assert (end.reward, end.metrics["sandboxed"]) == (1.0, 0.0)
    assert len(re.findall(f"run as your user, without a sandbox: .*{said}", caplog.text)) == 1


async def test_the_error_for_a_failed_command_mentions_the_sandbox() -> None:
    advice = (
        "before it called the model. It ran in a sandbox, .*sandbox=False to run it as your user"
    )
    with pytest.raises(AgentError, match=advice):
        await kit.play(python("raise SystemExit(1)"))
    with pytest.raises(AgentError, match="The program 'no-such-program' was not found"):
        await kit.play(ProcessAgent(["no-such-program"], sandbox=True))


async def test_a_command_for_a_container_runs_without_a_sandbox() -> None:
    agent = ProcessAgent(["sh", "-c", "exit 0"], host="0.0.0.0", sandbox=None)
    end: Any = await ChatAgentEnv(agent).initial_observation()
    assert end.metrics["sandboxed"] == 0.0


def test_an_invalid_sandbox_option_is_rejected() -> None:
    wrong: list[tuple[Any, str]] = [
        ("/data", "expected True, False, None, or a list of paths"),
        (7, "expected True, False, None, or a list of paths"),
        (["/no/such/path"], "The path '/no/such/path' in sandbox=... does not exist"),
    ]
    for sandbox, message in wrong:
        with pytest.raises(InvalidAgentError, match=message):
            ProcessAgent(["ls"], sandbox=sandbox)
    with pytest.raises(InvalidAgentError, match="host='0.0.0.0'. A command in a sandbox"):
        ProcessAgent(["ls"], sandbox=True, host="0.0.0.0")


# -- the sandbox itself ----------------------------------------------------------------------------


PYTHON = os.path.realpath(sys.executable)  # the system Python, even if evert runs in a venv


def run(sandbox: Sandbox, code: str, **options: Any) -> str:
    with sandbox.command(["sh", "-c", code]) as (command, descriptors):
        process = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, text=True, pass_fds=descriptors, **options
        )
    return f"{process.stdout}{process.returncode}"


def test_nested_paths_keep_their_own_access_mode(tmp_path: Path) -> None:
    for name in ("outer/inner/deep", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").write_text("of outside")
    sandbox = Sandbox(
        writable={"/w": tmp_path / "outer", "/w/inner/deep": tmp_path / "elsewhere"},
        readonly={"/w/inner": tmp_path / "outer/inner", "/f": tmp_path / "file"},
        hidden=["/etc/hosts", "/etc/ssl"],
        folder="/w",
    )
    quiet: dict[str, Any] = {"stderr": subprocess.DEVNULL}
    assert run(sandbox, "echo x > a && echo x > inner/deep/b; echo x > inner/c", **quiet) == "2"
    assert {*tmp_path.rglob("[abc]")} == {tmp_path / "outer/a", tmp_path / "elsewhere/b"}
    assert run(sandbox, "cat /f; pwd; cat /etc/hosts; ls /etc/ssl; test -e /etc/passwd") == (
        "of outside/w\n0"
    )


@pytest.mark.parametrize("path", ["relative", "/a/../b"])
def test_a_path_inside_a_sandbox_must_be_absolute(path: str) -> None:
    with pytest.raises(ValueError, match="expected an absolute path without"):
        run(Sandbox(writable={path: Path("/tmp")}), "ls")


def test_the_commands_exit_status_is_returned_with_and_without_a_relay(tmp_path: Path) -> None:
    (tmp_path / "socket").touch()
    for ports in ({}, {8000: tmp_path / "socket"}):
        sandbox = Sandbox(ports=ports)
        ends = {"exit 3": "3", "kill -9 $$": "137", "exec no-such-program": "127"}
        assert {code: run(sandbox, code, stderr=subprocess.PIPE) for code in ends} == ends


def test_a_relay_forwards_data_and_eof_in_both_directions(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        server.settimeout(30)
        code = """
import socket
with socket.create_connection(("127.0.0.1", 8000)) as one:
    one.sendall(b"x" * 5_000_000)
    one.shutdown(socket.SHUT_WR)
    print(len(one.makefile("rb").read()))
with socket.create_connection(("127.0.0.1", 8000)) as two:
    print(two.recv(9))
    two.sendall(b"last")
"""
        sandbox = Sandbox(ports={8000: tmp_path / "socket"})
        with (
            sandbox.command([PYTHON, "-S", "-c", code]) as (command, fds),
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=fds) as process,
        ):
            with server.accept()[0] as connection:
                assert len(connection.makefile("rb").read()) == 5_000_000
                connection.sendall(b"y" * 3_000_000)
            with server.accept()[0] as two:
                two.sendall(b"now")
                assert two.makefile("rb").read() == b"last"
            assert process.stdout is not None
            assert process.stdout.read() == "3000000\nb'now'\n"


def test_a_relay_closes_the_connection_if_nothing_is_listening(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    code = "import socket; print(socket.create_connection(('127.0.0.1', 8000)).recv(9))"
    sandbox = Sandbox(ports={8000: tmp_path / "socket"})
    assert run(sandbox, f'exec {PYTHON} -S -c "{code}"') == "b''\n0"


def test_a_sandbox_has_no_terminal_even_if_the_trainer_does() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        reach = ["sh", "-c", "(: < /dev/tty) 2> /dev/null && echo reached || echo apart"]
        with Sandbox().command(reach) as (command, descriptors):
            os.set_inheritable(descriptors[0], True)
            line = f"{shlex.join(command)}; (: < /dev/tty) && echo has one"
            os.execv("/bin/sh", ["sh", "-c", line])
    output = b""
    with suppress(OSError):  # raised when the terminal closes
        while data := os.read(terminal, 1000):
            output += data
    os.waitpid(pid, 0)
    os.close(terminal)

    assert output.split() == [b"apart", b"has", b"one"]


def test_killing_the_trainer_kills_all_processes_in_the_sandbox() -> None:
    assert all(killed(["new session", "flood of sessions"], signal.SIGKILL, True).values())
