"""A Harbor trial as an episode, with a scripted model. No API key, network or container needed.

python frameworks/make_environment.py harbor
.frameworks/harbor/bin/python examples/harbor_trial.py
"""

import asyncio
import json
from pathlib import Path

from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv, ScriptedPolicy, explain
from evert.harbor import HarborAgent

TASK = Path(__file__).parent / "harbor" / "sum-csv"


def say(keys: str = "") -> str:
    """Return terminus-2's next reply: type the keys or, if there are none, complete the task."""
    commands = [{"keystrokes": f"{keys}\n", "duration": 0.5}] if keys else []
    return json.dumps({"analysis": "", "plan": "", "commands": commands, "task_complete": not keys})


COUNT = "awk -F, '$2 == \"lamp\" { sum += $3 * $4 } END { print sum }' sales.csv > total.txt"

if __name__ == "__main__":
    agent = HarborAgent("terminus-2", environment="bubblewrap")
    policy = ScriptedPolicy([say(COUNT), say(), say()])  # terminus-2 asks for confirmation
    trajectory = asyncio.run(do_single_rollout(policy, ChatAgentEnv(agent, str(TASK))))
    explain(trajectory)
    print("reward", trajectory.transitions[-1].reward)
