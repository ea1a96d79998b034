"""Well-known agents that run as commands, ready to be trained.

    fix = evert.agents.claude_code("Make check.py pass.", files=FILES, reward=CHECK)
    env = ChatAgentEnv(fix)

Each function returns a ``ProcessAgent`` that knows the program's flags, writes its configuration
into the episode's own folder, and switches off the program's model calls for anything but the task
(titles, summaries). Where bubblewrap is installed, the programs run in a sandbox. evert does not
install the programs.

    anthropic_claude.py    ``claude_code``: Claude Code, from npm
    openai_codex.py        ``codex``: OpenAI's Codex, from npm
    google_gemini.py       ``gemini_cli``: Google's Gemini CLI, from npm
    aider_chat.py          ``aider``: Aider, from PyPI, in a separate environment
    recipe.py              the options that these four share, and what makes their agents
    process.py             ``ProcessAgent``: an agent that is a command
    commands.py            runs the commands of one episode
    laying.py              writes an episode's files without following links
    supervisor.py          starts one command, and ends every process that the command started
    variables.py           the environment variables that a command gets
    sandboxed.py           decides whether a command runs in a sandbox, and makes that sandbox
    sandbox.py             a sandbox made by bubblewrap, without a daemon
    seccomp.py             the system calls that a sandbox refuses
    installed.py           the folders of installed programs that a sandbox must show
    relay.py               forwards connections from a sandbox to the model
    mcp_tools.py           ``evert.mcp_tools``: the tools of an MCP server, for any agent
    cookbook.py            ``CookbookAgent``: an environment of the Cookbook as an agent
"""

import sys
from typing import Any

from evert.bridge.errors import NEEDS_UNIX

__all__ = ["aider", "claude_code", "codex", "gemini_cli"]

if sys.platform == "win32":

    def __getattr__(name: str) -> Any:
        if name in __all__:
            raise ImportError(f"evert.agents.{name} {NEEDS_UNIX}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

else:
    from evert.agents.aider_chat import aider
    from evert.agents.anthropic_claude import claude_code
    from evert.agents.google_gemini import gemini_cli
    from evert.agents.openai_codex import codex
