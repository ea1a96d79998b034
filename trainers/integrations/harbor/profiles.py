"""Default settings for Harbor's agents, which users can override.

``QUIET`` is always used. It disables retries, timeouts while the trainer samples, and model calls
that don't serve the task, such as calls that write titles or memories. ``LEAN`` is used with
``lean=True``. It removes most of the first prompt, except the task.

A profile contains fields of Harbor's ``AgentConfig``, "files" to write into the environment, and
"completes_arguments", which says whether the agent fills in tool call arguments before sending them
back. The settings themselves are defined in ``evert.agents``.
"""

import json
import tomllib
from typing import Any, TypeAlias

from evert.agents import aider_chat, anthropic_claude, google_gemini, openai_codex

Profile: TypeAlias = dict[str, Any]

AIDER = {
    f"AIDER_{flag[2:].removeprefix('no-').replace('-', '_').upper()}": str(
        not flag.startswith("--no-")
    ).lower()
    for flag in aider_chat.QUIET
}
"""Aider's flags as environment variables, because Harbor only passes on a few of them."""

CODEX = openai_codex.CONFIG.replace("{lean_settings}\n", "").replace("{lean_features}\n", "")
INSTRUCTIONS = "/root/.evert/instructions.md"
SETTINGS = "/root/.evert/settings.json"

CLAUDE = {
    name: value
    for name, value in anthropic_claude.ENVIRONMENT.items()
    if "{" not in value  # skip the models, which Harbor sets
}

TOOLS = ("list", "glob", "grep", "task", "todowrite", "webfetch", "skill", "question", "patch")
"""opencode tools that ``LEAN`` disables. The shell and the file-reading tool remain."""

NEVER = 86_400_000
"""One day in milliseconds. Timeouts must be long, as a reply may have to wait for a full batch."""

QUIET: dict[str, Profile] = {
    "aider": {"env": {**AIDER, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}},
    "claude-code": {"env": CLAUDE, "completes_arguments": True},
    "codex": {"kwargs": {"config": tomllib.loads(CODEX)}},  # Harbor sets the URL
    "gemini-cli": {
        "env": {"GEMINI_CLI_NO_RELAUNCH": "true", "GEMINI_CLI_SYSTEM_SETTINGS_PATH": SETTINGS},
        "files": {SETTINGS: json.dumps(google_gemini.SETTINGS)},
    },
    "opencode": {
        "kwargs": {
            "opencode_config": {
                "agent": {"title": {"disable": True}},
                "share": "disabled",
                "autoupdate": False,
                "provider": {"evert": {"options": {"timeout": False}}},
            }
        },
        "env": {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"},
    },
    "qwen-coder": {
        "kwargs": {
            "config": {
                "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
                "model": {"generationConfig": {"timeout": NEVER, "maxRetries": 0}},
                "privacy": {"usageStatisticsEnabled": False},
                "telemetry": {"enabled": False},
            }
        },
    },
    # stop terminus-2 from installing a recorder in each environment
    "terminus-2": {"kwargs": {"record_terminal_session": False}},
}

LEAN: dict[str, Profile] = {
    "claude-code": {"env": {"CLAUDE_CODE_SIMPLE": "1"}},  # its --bare
    "codex": {
        "kwargs": {
            "config": {
                **tomllib.loads(openai_codex.LEAN_SETTINGS),
                "model_instructions_file": INSTRUCTIONS,
                "features": tomllib.loads(openai_codex.LEAN_FEATURES),
            }
        },
        "files": {INSTRUCTIONS: openai_codex.INSTRUCTIONS},
    },
    "gemini-cli": {
        "env": {"GEMINI_SYSTEM_MD": INSTRUCTIONS},
        "files": {
            INSTRUCTIONS: google_gemini.INSTRUCTIONS,
            SETTINGS: json.dumps(
                {
                    **google_gemini.SETTINGS,
                    "tools": {"core": [*google_gemini.LEAN_TOOLS, "run_shell_command"]},
                }
            ),
        },
    },
    "opencode": {
        "kwargs": {
            "opencode_config": {
                "agent": {"build": {"prompt": openai_codex.INSTRUCTIONS.split(" To edit")[0]}},
                "tools": dict.fromkeys(TOOLS, False),
            }
        }
    },
    "qwen-coder": {
        "env": {"QWEN_CODE_SIMPLE": "1", "QWEN_SYSTEM_MD": INSTRUCTIONS},  # its --bare
        "files": {INSTRUCTIONS: google_gemini.INSTRUCTIONS},
    },
}


def profile(name: str, lean: bool) -> Profile:
    """Return an agent's profile, which may be empty."""
    merged: Profile = _merged(QUIET.get(name, {}), LEAN.get(name, {}) if lean else {})
    return merged


def _merged(base: Any, override: Any) -> Any:
    """Merge nested dicts. If both have a value for a key, the value in ``override`` wins."""
    if not isinstance(base, dict) or not isinstance(override, dict):
        return override
    merged = {key: _merged(base[key], override[key]) for key in base.keys() & override.keys()}
    return {**base, **override, **merged}
