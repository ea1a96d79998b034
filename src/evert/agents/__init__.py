"""Well-known agents that run as commands, ready to be trained.

    fix = evert.agents.claude_code("Make check.py pass.", files=FILES, reward=CHECK)
    env = ChatAgentEnv(fix)

Each function returns a ``ProcessAgent`` that knows the program's flags, what it would ask the model
beside its task (titles, summaries) and how to keep it quiet, and the configuration that it reads,
which lies in the episode's own folder. Where bubblewrap is installed they run in a sandbox. The
programs themselves are not installed with evert.

    anthropic_claude.py    ``claude_code``: Claude Code, from npm
    openai_codex.py        ``codex``: OpenAI's Codex, from npm
    google_gemini.py       ``gemini_cli``: Google's Gemini CLI, from npm
    aider_chat.py          ``aider``: Aider, from PyPI, in an environment of its own
    recipe.py              what they share: their options, and the agent made of them
    commands.py            the commands of one episode, and all that they start
    cookbook.py            ``CookbookAgent``: an environment of the Cookbook as an agent
    process.py             ``ProcessAgent``: an agent that is a command
    supervisor.py          the process that runs one of them, and ends all of that
    sandboxed.py           whether a command runs in a sandbox, and in which
    installed.py           where programs are installed that have to be seen there
    sandbox.py             a sandbox without a daemon: what a program sees
    relay.py               what leads from a sandbox to the model
    variables.py           the environment variables that a command gets
"""

from evert.agents.aider_chat import aider
from evert.agents.anthropic_claude import claude_code
from evert.agents.google_gemini import gemini_cli
from evert.agents.openai_codex import codex

__all__ = ["aider", "claude_code", "codex", "gemini_cli"]
