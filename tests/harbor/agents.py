"""Harbor agents for these tests: one that runs command lines, and some that are programs."""

import asyncio
import subprocess
import sys
from typing import Any, ClassVar

from harbor.agents.base import BaseAgent
from harbor.agents.installed.base import BaseInstalledAgent
from harbor.environments.base import ExecResult

ASK = r"""
import json, os, sys, urllib.request as web
url, key = os.environ["OPENAI_BASE_URL"] + "/chat/completions", os.environ["OPENAI_API_KEY"]
said = [{"role": "user", "content": sys.argv[1]}]
body = json.dumps({"model": os.environ["EVERT_MODEL"], "messages": said}).encode()
head = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
with web.urlopen(web.Request(url, body, head)) as reply:
    print(json.load(reply)["choices"][0]["message"]["content"])
"""


class Typist(BaseAgent):
    """Runs command lines in the environment and records the results."""

    seen: ClassVar[list[ExecResult]] = []

    def __init__(self, *args: Any, lines: list[str], **options: Any) -> None:
        super().__init__(*args, **options)
        self._lines = lines

    @staticmethod
    def name() -> str:
        return "typist"

    def version(self) -> str:
        return "1"

    async def setup(self, environment: Any) -> None:
        self.seen.clear()

    async def run(self, instruction: str, environment: Any, context: Any) -> None:
        for line in self._lines:
            self.seen.append(await environment.exec(line))


class Elsewhere(BaseAgent):
    """A program outside the environment that calls the model at the address it is given."""

    asked: ClassVar[list[str]] = []

    @staticmethod
    def name() -> str:
        return "elsewhere"

    def version(self) -> str:
        return "1"

    async def setup(self, environment: Any) -> None:
        self.asked.clear()

    async def run(self, instruction: str, environment: Any, context: Any) -> None:
        env = self.extra_env
        self.asked.append(env["OPENAI_BASE_URL"])
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ASK, instruction, env=env, stdout=subprocess.PIPE
        )
        line, _ = await program.communicate()
        await environment.exec(line.decode())


class Program(BaseInstalledAgent):
    """A program in the environment that asks the model for a command line and runs it."""

    @staticmethod
    def name() -> str:
        return "program"

    async def install(self, environment: Any) -> None:
        """Do nothing, because the program only needs this machine's Python."""

    async def run(self, instruction: str, environment: Any, context: Any) -> None:
        asked = {"PROGRAM": ASK, "TASK": instruction}
        line = 'python3 -c "$PROGRAM" "$TASK" > /tmp/line && bash /tmp/line'
        await self.exec_as_agent(environment, line, env=asked)
