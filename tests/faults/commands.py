"""Misbehaving commands: what they do to their supervisor and leave for their trainer and judge.

Each row is a ``Leaving``, which describes what a command does and what the trainer sees. In its
code, ``MINE`` is one of the user's folders, ``TOP`` is the parent of the working folder, and
``stay`` starts a process that does not exit. All rows except ``BOXES`` run without a sandbox,
because a sandbox would prevent most of these faults.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.scene import line

from evert import ChatAgentEnv, ProcessAgent
from evert.agents.commands import ProcessResult
from evert.bridge.episode.agent import NO_TASK

PRELUDE = """
import glob, json, os, shutil, signal, socket, subprocess, sys, time
MINE, MARK = os.environ["MINE"][1:], os.environ["STAYS"]
TOP, SUPERVISOR = os.path.dirname(os.getcwd()), os.getppid()
REWARD = os.environ.get("EVERT_REWARD_FILE", "")

def write(text, name=REWARD):
    with open(name, "wb") as file:
        file.write(text if isinstance(text, bytes) else text.encode())

def stay(code="", name="stays"):
    code = "import os, signal, sys, time\\nprint(flush=True)\\n" + code + "\\ntime.sleep(600)"
    command = [sys.executable, "-S", "-c", code, MARK, str(SUPERVISOR)]
    pipe = subprocess.PIPE
    started = subprocess.Popen(command, env={}, start_new_session=True, stdout=pipe)
    started.stdout.readline()
"""


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """A row of the table: what a command does (in words and in Python), and the result."""

    name: str
    does: str = ""
    sees: str
    options: Mapping[str, Any] = field(default_factory=dict)  # options of the ProcessAgent
    env: Mapping[str, Any] = field(default_factory=dict)  # options of the Env
    task: Any = NO_TASK

    def __str__(self) -> str:
        return self.name

    async def play(self, mine: Path, mark: str) -> str:
        # Without the "=", the value would be a path, and the sandbox would make that path visible.
        variables = {"MINE": f"={mine}", "STAYS": mark, **self.options.get("env", {})}
        options = {"sandbox": False, **self.options, "env": variables}
        agent = ProcessAgent([sys.executable, "-S", "-c", PRELUDE + self.does], **options)
        env = ChatAgentEnv(agent, self.task, **{"agent_timeout": 60.0, **self.env})
        try:
            return line(await env.initial_observation())
        except Exception as error:
            return line(error)
        finally:
            await env.close()


SCORED = "completed 1 without a turn"
NOT_SCORED = "completed 0 without a turn"
LOST = (
    "AgentError.RewardError: … did not write a reward to EVERT_REWARD_FILE ({}). It exited with …"
)
NO_FILE = LOST.format("it is not a regular file")
LINK = LOST.format("its path contains a link or leaves the folder")
LONG = LOST.format("it is larger than 65536 bytes")
NO_JSON = LOST.format("Expecting value: …")
NO_NUMBER = "RewardError: The reward returned by the agent … is {}…; expected a finite number…"


WRITTEN: dict[str, tuple[str, str]] = {
    "nothing": ("", LOST.format("[Errno 2] No such file or directory: …")),
    "a number": ("write('0.5')", "completed 0.5 without a turn"),
    "a named pipe": ("os.mkfifo(REWARD)", NO_FILE),
    "a link to an infinite device": ("os.symlink('/dev/zero', REWARD)", LINK),
    "a link to a reward": ("write('1', 'r'); os.symlink(os.path.abspath('r'), REWARD)", LINK),
    "a second name of a file": ("os.link(MINE + '/number', REWARD)",
        "completed 0.25 without a turn"),
    "a folder": ("os.mkdir(REWARD)", NO_FILE),
    "a socket": ("s = socket.socket(socket.AF_UNIX); os.chdir(TOP); s.bind('reward')",
        LOST.format("[Errno 6] …")),
    "a sparse file of 3 GB": ("write(''); os.truncate(REWARD, 3 * 2**30)", LONG),
    "a file that grows": ("write('1' * 65537); stay(f'file = open({REWARD!r}, \"a\")\\n"
        'while True: file.write("1" * 65536)\')', LONG),
    "NaN": ("write('NaN')", NO_NUMBER.format("nan")),
    "infinity": ("write('1e999')", NO_NUMBER.format("inf")),
    "a string": ("write('\"1.0\"')", NO_NUMBER.format("'1.0'")),
    "an int of 60,000 digits": ("write('9' * 60_000)", LOST.format("Exceeds the limit …")),
    "brackets 60,000 deep": ("write('[' * 60_000)", LOST.format("maximum recursion depth …")),
    "hexadecimal digits": ("write('0x1')", LOST.format("Extra data: …")),
    "null bytes": ("write(bytes(9))", NO_JSON),
    "UTF-16": ("write('1.0'.encode('utf-16'))", LOST.format("'utf-8' codec can't decode …")),
    "a metric that is a list": ('write(\'{"reward": 1, "metrics": {"m": []}}\')',
        "RewardError: The metric 'm' … is [] (list)…"),
    "a link in place of the episode's folder": ("shutil.rmtree(TOP); os.symlink(MINE, TOP)", LINK),
}  # fmt: skip

REWARDS = [
    Leaving(
        name=f"it leaves as its reward {what}", does=does, sees=sees, options={"reward": "file"}
    )
    for what, (does, sees) in WRITTEN.items()
]


CHECK = "import sys; sys.exit(open(sys.argv[1] + '/made').read() != 'good')"
JUDGED: dict[str, Any] = {
    "files": {"check.py": CHECK, "{judge}/check.py": CHECK},
    "reward": [sys.executable, "check.py", "{folder}"],
}
FORGED = "import os; os._exit(0)"
OF_TASK = "import os, sys; sys.exit(open(os.environ['EVERT_TASK_FILE']).read() != 'real')"


WAITS = f"""
import glob
while True:
    for one in glob.glob(TOP + "*/work"):
        with open(one + "/check.py", "w") as file:
            file.write({FORGED!r})
"""


def reads(result: ProcessResult, task: Any) -> float:
    """Reward function that returns 1.0 if any file can be read."""
    return float(any(result.read(name) is not None for name in ("made", "in/made", "../task")))


JUDGES = [
    Leaving(name="it does its work", does="write('good', 'made')", sees=SCORED, options=JUDGED),
    Leaving(name="it does nothing", sees=NOT_SCORED, options=JUDGED),
    Leaving(name="it overwrites the judge's program", does=f"write({FORGED!r}, 'check.py')",
        sees=NOT_SCORED, options=JUDGED),
    Leaving(name="it leaves modules for the judge's Python",
        does=f"for name in ('sys', 'site', 'sitecustomize', 'usercustomize', 'codecs', 'check'):"
        f" [write({FORGED!r}, place + name + '.py') for place in ('', '../home/', '../tmp/')]",
        sees=NOT_SCORED, options={**JUDGED, "reward": [sys.executable, "-m", "check", "{folder}"]}),
    Leaving(name="it leaves a process that writes into the folders of later episodes",
        does=f"stay({WAITS!r}.replace('TOP', repr(TOP[:-8])))", sees=NOT_SCORED, options=JUDGED),
    Leaving(name="it changes the task for the judge",
        does="write('forged', os.environ['EVERT_TASK_FILE'])", sees=SCORED,
        options={"reward": [sys.executable, "-c", OF_TASK, "{folder}"]}, task="real"),
    Leaving(name="it links the judge's output to a file of the user",
        does="write('good', 'made'); [os.symlink(MINE + '/mine', f'{TOP}/{role}.{end}')"
        " for role in ('reward', 'command') for end in ('out', 'err')]", sees=SCORED,
        options=JUDGED),
    Leaving(name="it leaves a named pipe in place of its folder",
        does="os.chdir(TOP); shutil.rmtree('work'); os.mkfifo('work')", sees=NOT_SCORED,
        options=JUDGED),
    *(
        Leaving(name=f"it leaves {what} for a function to read", does=does, sees=sees,
            options={"reward": reads})
        for what, does, sees in (
            ("a file", "os.mkdir('in'); write('x', 'in/made')", SCORED),
            ("a named pipe", "os.mkfifo('made')", NOT_SCORED),
            ("a link", "os.symlink(MINE + '/mine', 'made')", NOT_SCORED),
            ("a link to a folder", "write('x', MINE + '/../made'); os.symlink(MINE + '/..', 'in')",
                NOT_SCORED),
            ("2 GB", "write('', 'made'); os.truncate('made', 2**31)", NOT_SCORED),
            ("a link in place of its folder", "write('x', MINE + '/../made'); os.chdir(TOP);"
                "shutil.rmtree('work'); os.symlink(MINE + '/..', 'work')", NOT_SCORED),
        )
    ),
]  # fmt: skip


LEFT: dict[str, str] = {
    "a named pipe where its output was": "os.mkfifo('../command.out')",
    "folders 3,000 deep": "[(os.mkdir('d'), os.chdir('d')) for _ in range(3000)]",
    "inaccessible folders 1,200 deep": "for _ in range(1200): os.mkdir('d'); os.chdir('d')"
    "\nfor _ in range(1200): os.chdir('..'); os.chmod('d', 0)",
    "20,000 files": "[open(str(number), 'w').close() for number in range(20_000)]",
    "unusual file names": "for name in (b'\\n', b'\\xff', b' ', b'*', b'-rf', b'a' * 255):"
    " os.mkdir(name); open(name + b'/' + name, 'w').close()",
    "links to the user's files": "os.symlink(MINE, 'a'); os.symlink(MINE, '../b');"
    "os.symlink(MINE, '../home/c'); os.symlink('.', 'loop');"
    "os.link(MINE + '/mine', 'mine'); os.symlink('/', '../tmp/root')",
    "a link in place of all its folders": "shutil.rmtree(TOP); os.symlink(MINE, TOP)",
    "a link in place of its home": "os.rmdir('../home'); os.symlink(MINE, '../home')",
    "pipes, sockets and folders without permissions": "os.mkfifo('p'); os.mkdir('d');"
    " socket.socket(socket.AF_UNIX).bind('s'); os.chmod('d', 0); os.chmod(TOP, 0)",
    "no folder at all": "shutil.rmtree(TOP)",
    "5 MB of binary output": "sys.stdout.buffer.write(b'\\xff\\x00' * 2_500_000)",
}

FOLDERS = [Leaving(name=f"it leaves {what}", does=does, sees=SCORED) for what, does in LEFT.items()]


HUNG = "AgentTimeoutError: … neither called the model nor ended within agent_timeout=1.0 s…"
ENDED = "AgentError.CommandError: … exited with status -9 before it called the model.…"
SHORT = {"agent_timeout": 1.0}
BLOCKED = ("QUIT", "USR1", "ALRM", "SEGV", "ABRT", "PIPE", "TSTP", "TTIN", "CONT", "IO", "RTMIN")
STOPS = "while True: os.kill(int(sys.argv[2]), signal.SIGSTOP); time.sleep(0.001)"
TRACES = "import ctypes; ctypes.CDLL(None).ptrace(16, int(sys.argv[2]), 0, 0)"

SIGNALED = {
    **{name: (f"stay(); os.kill(SUPERVISOR, signal.SIG{name})", SCORED) for name in BLOCKED},
    "TERM": ("stay(); os.kill(SUPERVISOR, signal.SIGTERM); time.sleep(600)", ENDED),
    "STOP": ("stay(); os.kill(SUPERVISOR, signal.SIGSTOP)", HUNG),
    "STOP again and again": (f"stay({STOPS!r})", HUNG),
    "KILL": ("sleep = [sys.executable, '-S', '-c', 'import time; time.sleep(600)', MARK]; "
        "subprocess.Popen(sleep, start_new_session=True); os.kill(SUPERVISOR, signal.SIGKILL)\n"
        "time.sleep(600)", ENDED),
}  # fmt: skip

SIGNALS = [
    *(
        Leaving(name=f"it sends its supervisor SIG{name}", does=does, sees=sees,
            env=SHORT if sees == HUNG else {})
        for name, (does, sees) in SIGNALED.items()
    ),
    Leaving(name="it stops itself and all of its processes",
        does="stay('os.kill(os.getpid(), signal.SIGSTOP)'); os.killpg(0, signal.SIGSTOP)",
        sees=HUNG, env=SHORT),
    Leaving(name="it attaches to its supervisor like a debugger",
        does=f"stay({TRACES!r}); time.sleep(600)", sees=HUNG, env=SHORT),
    Leaving(name="it forges its supervisor's report that it has ended",
        does="try: os.write(os.open(f'/proc/{SUPERVISOR}/fd/1', os.O_WRONLY), b'ended 0')\n"
        "except OSError: pass\nstay()", sees=SCORED),
]  # fmt: skip


TASKS = [
    *(
        Leaving(name=f"its task contains {what}, which it does not read", sees=SCORED, task=task)
        for what, task in (("a null character", "a\0b"), ("a lone surrogate", "a\ud800b"))
    ),
    Leaving(name="its task contains a null character and is passed in a variable",
        sees="AgentError.CommandError: … its arguments are invalid: embedded null…"
        " Read the task from the file in EVERT_TASK_FILE…",
        options={"env": {"TEXT": "{task}"}}, task="a\0b"),
]  # fmt: skip

REPORTS = """
for one in glob.glob("/proc/[0-9]*/fd/*"):
    try: os.write(os.open(one, os.O_WRONLY | os.O_NONBLOCK), b"ended 0\\n")
    except OSError: pass
sys.exit(3)
"""
FLOOD = "stay(); [os.fork() for _ in range(6)]; os.setsid(); time.sleep(0 if os.fork() else 600)"
DEAF = "stay('[signal.signal(number, signal.SIG_IGN) for number in (1, 2, 3, 15)]')"
AS_IT_ENDED = "AgentError.CommandError: … exited with status 3 before it called the model.…"
UNRELAYED = "AgentError.CommandError: … exited with status 137 before it called the model.…"
LINKS = "os.symlink(MINE, 'mine'); os.symlink(MINE + '/mine', 'a'); os.symlink(MINE, '../home/c')"
SEARCH = {"reward": ["grep", "-rqs", "0.25", "{folder}", "{folder}/mine"]}

INSIDE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "it forges reports that it has ended": (REPORTS, AS_IT_ENDED, {}),
    "it leaves a flood of sessions": (FLOOD, SCORED, {}),
    "it leaves a process that ignores signals": (DEAF, SCORED, {}),
    "it kills the relay": ("stay(); os.kill(SUPERVISOR, 9); time.sleep(600)", UNRELAYED, {}),
    "it stops the relay": ("stay(); os.kill(SUPERVISOR, signal.SIGSTOP)", HUNG, {}),
    "it leaves a link to a user's file as its reward":
        ("os.symlink(MINE + '/number', REWARD)", LINK, {"reward": "file"}),
    "it leaves links to user files for a function to read": ("os.symlink(MINE + '/mine', 'made');"
        "os.symlink(MINE, 'in')", NOT_SCORED, {"reward": reads}),
    "it leaves links to user files where a judge searches": (LINKS, NOT_SCORED, SEARCH),
    "it replaces its folder with a link to a user's": ("os.chdir(TOP); shutil.rmtree('work');"
        "os.symlink(MINE, 'work')", NOT_SCORED, SEARCH),
    "it leaves inaccessible folders": ("os.chmod('.', 0); os.chmod(TOP, 0)", SCORED, {}),
    "it leaves a process that writes into later folders":
        (f"stay({WAITS!r}.replace('TOP', repr(TOP[:-8])))", NOT_SCORED, JUDGED),
}  # fmt: skip

BOXES = [
    Leaving(name=f"in a sandbox {name}", does=does, sees=sees, env=SHORT if sees == HUNG else {},
        options={"sandbox": True, **options})
    for name, (does, sees, options) in INSIDE.items()
]  # fmt: skip

TABLE = [*REWARDS, *JUDGES, *FOLDERS, *SIGNALS, *TASKS, *BOXES]
