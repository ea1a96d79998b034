"""``claude_code``: Claude Code as an agent, using Anthropic's Messages API.

https://docs.claude.com/en/docs/claude-code; tested with 2.1.330, ``npm install -g
@anthropic-ai/claude-code``.

- Model calls that are unrelated to the task (session titles) and traffic to other hosts are
  disabled.
- Claude Code stores settings, memories and sessions in the episode's home, and does not read yours.
- It modifies tool calls before sending them back: it adds ``replace_all: false``, strips whitespace
  at the ends of lines, and converts strings to numbers. With ``keep_completed_arguments``, these
  changes do not count as edits, and the sampled tokens are kept. Claude Code also removes a ``cd``
  to the current folder, which does count as an edit.
- For unknown models, it assumes a context of one million tokens, so it compacts too late. Use
  ``env={"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "32768"}`` to set a different size.
"""

from collections.abc import Sequence
from typing import Unpack

from evert.agents.process import ProcessAgent
from evert.agents.recipe import ProcessOptions, as_text, make_agent

ENVIRONMENT = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",  # titles, telemetry, updates
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    "CLAUDE_CODE_DISABLE_ATTACHMENTS": "1",  # tasks could refer to your files: "@/home/me/notes"
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # a line in the prompt that changes with every version
    "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",  # the fallback repeats the request
    "CLAUDE_CODE_MAX_RETRIES": "0",
    "API_TIMEOUT_MS": "86400000",  # replies may have to wait for a whole batch
    "DISABLE_AUTOUPDATER": "1",
    # use the policy for every model size that Claude Code or a subagent may request
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": "{model}",
    "ANTHROPIC_DEFAULT_SONNET_MODEL": "{model}",
    "ANTHROPIC_DEFAULT_OPUS_MODEL": "{model}",
    "CLAUDE_CODE_SUBAGENT_MODEL": "{model}",
}


def claude_code(
    prompt: str = "{task}",
    *,
    tools: Sequence[str] | None = None,
    permission_mode: str = "acceptEdits",
    lean: bool = False,
    program: str = "claude",
    arguments: Sequence[str] = (),
    **options: Unpack[ProcessOptions],
) -> ProcessAgent:
    """Create an agent that runs Claude Code on a prompt, in a new folder for each episode.

    Args:
        prompt: The instruction. ``{task}`` is replaced by the episode's task, and ``{task[name]}``
            by a part of the task.
        tools: Tools that the model is offered and can use without permission, such as
            ``("Read", "Edit", "Bash(git *)")``. By default, Claude Code chooses the tools, limited
            by ``permission_mode``.
        permission_mode: What Claude Code may do without permission. Everything else is denied.
            "acceptEdits" allows reading and editing files in its folder. "bypassPermissions" allows
            everything; only use it on machines that contain nothing of value.
        lean: Whether to shorten the prompt (``--bare``) from 48 kB to between 2 and 7 kB, including
            the task. The only tools are then Bash, Edit and Read.
        program: The name or path of the program.
        arguments: Additional arguments.
        **options: ``files``, ``setup``, ``reward``, ``cwd``, ``env``, ``host``, ``sandbox``: see
            ``ProcessAgent``.

    Raises:
        InvalidAgentError: See ``ProcessAgent``.
    """
    command = [program, "-p", "--model", "{model}", "--permission-mode", permission_mode]
    if tools is not None:
        names = dict.fromkeys(tool.partition("(")[0] for tool in tools)
        command += [f"--tools={','.join(names)}", f"--allowedTools={','.join(tools)}"]
    if lean:
        command.append("--bare")
    env: dict[str, str | None] = dict(ENVIRONMENT)
    if permission_mode == "bypassPermissions":
        env["IS_SANDBOX"] = "1"  # otherwise, it refuses to run as root (common in containers)
    return make_agent(
        [*command, *arguments, "--", as_text(prompt)],
        options,
        env=env,
        env_options={"keep_completed_arguments": True},
        install="npm install -g @anthropic-ai/claude-code",
    )
