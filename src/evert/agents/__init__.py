"""Ready-made agents that run well-known command-line programs.

    fix = evert.agents.claude_code("Make check.py pass.", files=FILES, reward=CHECK)
    env = ChatAgentEnv(fix)

Each function returns a ``ProcessAgent`` that uses the right flags for the program, writes its
configuration to the episode's folder, and disables model calls that are unrelated to the task (such
as titles and summaries). If bubblewrap is installed, the programs run in a sandbox. evert does not
install the programs.

    anthropic_claude.py    ``claude_code``: Claude Code, from npm
    openai_codex.py        ``codex``: OpenAI's Codex, from npm
    google_gemini.py       ``gemini_cli``: Google's Gemini CLI, from npm
    aider_chat.py          ``aider``: Aider, from PyPI, in a separate environment
    recipe.py              the options shared by these four, and the function that creates them
    process.py             ``ProcessAgent``: an agent that runs a command
    commands.py            runs the commands of one episode
    laying.py              writes an episode's files without following links
    supervisor.py          starts a command, and stops all processes that the command started
    variables.py           the environment variables passed to a command
    sandboxed.py           decides whether a command runs in a sandbox, and creates the sandbox
    sandbox.py             a sandbox based on bubblewrap, without a daemon
    seccomp.py             the system calls that are blocked in a sandbox
    installed.py           the folders of installed programs that a sandbox must show
    relay.py               forwards connections from a sandbox to the model
    mcp_tools.py           ``evert.mcp_tools``: the tools of an MCP server, for any agent
    cookbook.py            ``CookbookAgent``: a Cookbook environment as an agent
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
