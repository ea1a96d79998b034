"""``claude_code``: Claude Code as an agent, over Anthropic's messages.

https://docs.claude.com/en/docs/claude-code; tested with 2.1.330, ``npm install -g
@anthropic-ai/claude-code``.

- Model calls besides the task (session titles) and traffic to other hosts are switched off.
- Claude Code keeps settings, memories and sessions in the episode's home, and does not read yours.
- It changes tool calls before it sends them back: it adds ``replace_all: false``, strips white
  space from the ends of lines, and turns strings into numbers. With ``keep_completed_arguments``
  these changes do not count as edits, and the sampled tokens are kept. It also removes a ``cd``
  into its own folder; that does count as an edit.
- It assumes a context of a million tokens for models that it does not know, so it compacts too
  late. ``env={"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "32768"}`` sets another size.
"""

from collections.abc import Sequence
from typing import Unpack

from evert.agents.process import ProcessAgent
from evert.agents.recipe import ProcessOptions, as_text, make_agent

ENVIRONMENT = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",  # titles, telemetry, updates
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    "CLAUDE_CODE_DISABLE_ATTACHMENTS": "1",  # a task may name your files: "@/home/me/notes"
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # a line of the prompt that each version changes
    "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",  # would send the same request again
    "CLAUDE_CODE_MAX_RETRIES": "0",
    "API_TIMEOUT_MS": "86400000",  # a reply may wait for a whole batch
    "DISABLE_AUTOUPDATER": "1",
    # the policy answers whichever model size Claude Code or a sub-agent asks for
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
    """Return an agent that runs Claude Code on a prompt, in a new folder for each episode.

    Args:
        prompt: The instruction. ``{task}`` is replaced by the episode's task, ``{task[name]}`` by
            one part of the task.
        tools: Tools that Claude Code offers the model and may use without permission, such as
            ``("Read", "Edit", "Bash(git *)")``; None: Claude Code's own choice of tools, limited by
            ``permission_mode``.
        permission_mode: What Claude Code may do without permission; everything else is denied.
            "acceptEdits": read and edit files in its folder. "bypassPermissions": everything, for
            machines that hold nothing of value.
        lean: Whether to shorten the prompt (``--bare``) from 48 kB to between 2 and 7 kB, including
            the task. It then offers no tools but Bash, Edit and Read.
        program: The program, or its path.
        arguments: Further arguments.
        **options: ``files``, ``setup``, ``reward``, ``cwd``, ``env``, ``host``, ``sandbox``: see
            ``ProcessAgent``.

    Raises:
        InvalidAgentError: As for ``ProcessAgent``.
    """
    command = [program, "-p", "--model", "{model}", "--permission-mode", permission_mode]
    if tools is not None:
        names = dict.fromkeys(tool.partition("(")[0] for tool in tools)
        command += [f"--tools={','.join(names)}", f"--allowedTools={','.join(tools)}"]
    if lean:
        command.append("--bare")
    env: dict[str, str | None] = dict(ENVIRONMENT)
    if permission_mode == "bypassPermissions":
        env["IS_SANDBOX"] = "1"  # else it refuses to run as root, the usual user in containers
    return make_agent(
        [*command, *arguments, "--", as_text(prompt)],
        options,
        env=env,
        env_options={"keep_completed_arguments": True},
        install="npm install -g @anthropic-ai/claude-code",
    )
