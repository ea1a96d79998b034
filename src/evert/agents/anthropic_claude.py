"""``claude_code``: Claude Code as an agent, over Anthropic's messages.

https://docs.claude.com/en/docs/claude-code; tried with 2.1.330, ``npm install -g
@anthropic-ai/claude-code``.

- What it would ask the model beside the task (session titles) or send elsewhere is switched off.
- Its settings, memories and sessions lie in the episode's home; yours are not read.
- It sends tool calls back as it understood them: ``replace_all: false`` added, white space taken
  from the ends of lines, numbers read from strings. What was sampled is kept all the same
  (``keep_completed_arguments``); only a ``cd`` into its own folder that it leaves out is an edit.
- It takes a model that it does not know for one with a context of a million tokens, and so never
  compacts in time. ``env={"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "32768"}`` tells it another size.
"""

from collections.abc import Sequence
from typing import Unpack

from evert.agents.process import ProcessAgent
from evert.agents.recipe import ProcessOptions, as_text, made

ENVIRONMENT = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",  # titles, telemetry, updates
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    "CLAUDE_CODE_DISABLE_ATTACHMENTS": "1",  # files of yours that a task names: "@/home/me/notes"
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # a line of the prompt that each version changes
    "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",  # it would ask the same a second time
    "CLAUDE_CODE_MAX_RETRIES": "0",
    "API_TIMEOUT_MS": "86400000",  # a reply may wait for a whole batch
    "DISABLE_AUTOUPDATER": "1",
    # whatever size of model it or a sub-agent asks for, it is the policy
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
    """Claude Code on a prompt, in a folder of its own.

    Args:
        prompt: What to do; ``{task}`` in it is the episode's task, ``{task[name]}`` a part of it.
        tools: The tools that it offers and may use unasked, ``("Read", "Edit", "Bash(git *)")``;
            None: its own choice of tools, of which ``permission_mode`` says what they may do.
        permission_mode: What it may do unasked; what it would ask for is denied. "acceptEdits":
            read and edit files of its folder. "bypassPermissions": everything, for machines that
            hold nothing else.
        lean: Whether to leave out what makes the prompt long (``--bare``): 2 to 7 kB with the task,
            where its own has 48. Tools are then Bash, Edit and Read at most.
        program: The program, or its path.
        arguments: Further arguments.
        **options: ``files``, ``setup``, ``reward``, ``cwd``, ``env``, ``host``, ``sandbox``: see
            ``ProcessAgent``.

    Raises:
        InvalidAgentError: As ``ProcessAgent``.
    """
    command = [program, "-p", "--model", "{model}", "--permission-mode", permission_mode]
    if tools is not None:
        names = dict.fromkeys(tool.partition("(")[0] for tool in tools)
        command += [f"--tools={','.join(names)}", f"--allowedTools={','.join(tools)}"]
    if lean:
        command.append("--bare")
    env: dict[str, str | None] = dict(ENVIRONMENT)
    if permission_mode == "bypassPermissions":
        env["IS_SANDBOX"] = "1"  # else it refuses to run as root, whom containers know only
    return made(
        [*command, *arguments, "--", as_text(prompt)],
        options,
        env=env,
        env_options={"keep_completed_arguments": True},
        install="npm install -g @anthropic-ai/claude-code",
    )
