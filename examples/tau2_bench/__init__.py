"""tau2-bench, with its orchestrator, environments, user simulator and evaluator unchanged.

There are three agents, which differ in the roles that are trained. Each runs a task with the
benchmark's own function and returns its reward. Both roles call models by name through LiteLLM, and
evert takes over calls to the names it knows:

    agent           the service agent is the policy, and the customer is the model "user"
    user            the customer is the policy, and the service agent is the model "agent"
    agent_and_user  both are trained, with seats=("agent", "user")

As a taskset (``evert.envs.tasksets``), ``tasks=tau2_bench:retail`` trains the first agent,
``tasks.plays=user`` the second and ``tasks.plays=both`` the third. The train/test split is the
benchmark's own.
"""

import functools
import os
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # don't download prices on import
os.environ.setdefault("LOGURU_LEVEL", "CRITICAL")  # don't log that calls have no price

import litellm
from tau2.data_model.simulation import TerminationReason, TextRunConfig
from tau2.data_model.tasks import Task
from tau2.runner import get_tasks, run_single_task

from evert import Game, Outcome

litellm.openai_key = os.environ.get("OPENAI_API_KEY", "unused")  # required for every call
litellm.suppress_debug_info = True


def agent(client: Any, task: dict[str, str]) -> Outcome:
    """Play an episode in which the policy is the service agent."""
    return play(task, agent=client.model, user="user")


def user(client: Any, task: dict[str, str]) -> Outcome:
    """Play an episode in which the policy is the customer."""
    return play(task, agent="agent", user=client.model)


def agent_and_user(client: Any, task: dict[str, str]) -> Outcome:
    """Play an episode in which both roles are trained and get the benchmark's reward."""
    return play(task, agent=client.seat("agent").model, user=client.seat("user").model)


def play(task: dict[str, str], *, agent: str, user: str) -> Outcome:
    """Play and score a task with the benchmark.

    Args:
        task: A dict with ``domain`` and ``id``.
        agent: Model name for the service agent.
        user: Model name for the customer.
    """
    once = {"num_retries": 0}
    config = TextRunConfig(
        domain=task["domain"],
        llm_agent=f"openai/{agent}",
        llm_args_agent=once,
        llm_user=f"openai/{user}",
        llm_args_user=once,
    )
    run = run_single_task(config, tasks_by_id(task["domain"])[task["id"]])
    parts = run.reward_info.reward_breakdown or {}
    return Outcome(
        run.reward_info.reward,
        metrics={f"reward_{part.value.lower()}": earned for part, earned in parts.items()},
        logs={"task": f"{task['domain']} {task['id']}", "ended": run.termination_reason.value},
        truncated=run.termination_reason == TerminationReason.MAX_STEPS,
    )


@functools.cache
def tasks_by_id(domain: str) -> dict[str, Task]:
    """Return the benchmark's tasks for a domain, keyed by task id."""
    return {task.id: task for task in get_tasks(domain)}


class Tasks(list[dict[str, str]]):
    """The tasks in one of a domain's splits, in the format for ``play``."""

    from_path = True

    def __init__(self, domain: str, split: str = "base") -> None:
        super().__init__({"domain": domain, "id": task.id} for task in get_tasks(domain, split))


PLAYS = {"agent": agent, "user": user, "both": agent_and_user}


def taskset(domain: str, plays: str = "agent") -> Game:
    """Return the game for a domain.

    Args:
        domain: "retail", "telecom", "airline", or "mock" (without held-out tasks).
        plays: Which role to train: "agent", "user" or "both".
    """
    train, *test = ("train", "test") if domain != "mock" else ("base",)
    Tasks(domain, train)  # raises if there is no such domain
    own = f"{__name__}:Tasks({domain!r}, "
    return Game(
        f"tau2/{domain.capitalize()}-v0",
        agent=f"{__name__}:{PLAYS[plays].__name__}",
        train_tasks=f"{own}{train!r})",
        test_tasks=f"{own}{test[0]!r})" if test else "",
        recipe={"seats": ("agent", "user")} if plays == "both" else {},
    )
