"""tau2-bench with its own orchestrator, environments, user simulator and evaluator, unchanged.

Three agents differ in the role that is trained. Each plays a task with the benchmark's own function
and returns the benchmark's reward. Both roles call a model by name through LiteLLM, and evert takes
over the calls to names that it knows:

    agent           the service agent is the policy, the customer is the model called "user"
    user            the customer is the policy, the service agent is the model called "agent"
    agent_and_user  both are trained: seats=("agent", "user")

As a taskset (``evert.envs.tasksets``), ``tasks=tau2_bench:retail`` trains the first,
``tasks.plays=user`` the second and ``tasks.plays=both`` the third. The benchmark chooses the
held-out tasks.
"""

import functools
import os
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it downloads prices on import
os.environ.setdefault("LOGURU_LEVEL", "CRITICAL")  # else each call logs that it has no price

import litellm
from tau2.data_model.simulation import TerminationReason, TextRunConfig
from tau2.data_model.tasks import Task
from tau2.runner import get_tasks, run_single_task

from evert import Game, Outcome

litellm.openai_key = os.environ.get("OPENAI_API_KEY", "unused")  # no call is made without one
litellm.suppress_debug_info = True


def agent(client: Any, task: dict[str, str]) -> Outcome:
    """Play an episode in which the policy serves the customer."""
    return play(task, agent=client.model, user="user")


def user(client: Any, task: dict[str, str]) -> Outcome:
    """Play an episode in which the policy is the customer."""
    return play(task, agent="agent", user=client.model)


def agent_and_user(client: Any, task: dict[str, str]) -> Outcome:
    """Play an episode of two trained roles; both get the benchmark's reward."""
    return play(task, agent=client.seat("agent").model, user=client.seat("user").model)


def play(task: dict[str, str], *, agent: str, user: str) -> Outcome:
    """Let the benchmark play and score a task.

    Args:
        task: ``domain`` and ``id``.
        agent: Name of the service agent's model.
        user: Name of the customer's model.
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
    """Return the benchmark's tasks of a domain by their ids."""
    return {task.id: task for task in get_tasks(domain)}


class Tasks(list[dict[str, str]]):
    """The tasks of a domain's split, as ``play`` takes them."""

    from_path = True

    def __init__(self, domain: str, split: str = "base") -> None:
        super().__init__({"domain": domain, "id": task.id} for task in get_tasks(domain, split))


PLAYS = {"agent": agent, "user": user, "both": agent_and_user}


def taskset(domain: str, plays: str = "agent") -> Game:
    """Return a domain as a game.

    Args:
        domain: "retail", "telecom", "airline", or "mock", which has no held-out tasks.
        plays: Who is trained: "agent", "user" or "both".
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
