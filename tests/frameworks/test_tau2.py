"""tau2-bench under evert: the same replies earn the same as in the benchmark's own runner.

The benchmark is the checkout in ``TAU2_BENCH``. Both roles are scripted and played twice: by the
benchmark's own ``run_tasks``, through an HTTP API that LiteLLM calls, and as tokens under evert,
where all tasks run concurrently. Every task must earn the same both times, and an episode must be a
single datum with exactly the sampled tokens.
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import litellm
import pytest
import tau2
import tau2_bench
from episodes import by_rank, give_up_at_the_second_call, reward
from tau2.config import DEFAULT_LLM_NL_ASSERTIONS as JUDGE
from tau2.data_model.simulation import TextRunConfig
from tau2.data_model.tasks import Action, Task
from tau2.runner import run_tasks
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import AgentError, ChatAgentEnv, ScriptedPolicy
from evert.bridge.env.seats import seat_envs
from evert.trainers.cli import main as evert_command

pytestmark = pytest.mark.usefixtures("no_sockets")

TASKS = {
    "retail": [*tau2_bench.Tasks("retail", "train"), *tau2_bench.Tasks("retail", "test")][:20],
    "telecom": tau2_bench.Tasks("telecom", "small"),
    "mock": tau2_bench.Tasks("mock"),
}

# -- scripts -------------------------------------------------------------------------------------

Calls = tuple[tuple[str, dict[str, Any]], ...]
Reply = str | Calls
"""A model's reply: text, or tool calls by name and arguments."""

STOP = "###STOP###"


@dataclass(frozen=True)
class Script:
    """The replies of each of the benchmark's models in one task, in order."""

    agent: tuple[Reply, ...] = ()
    user: tuple[Reply, ...] = ()
    judge: tuple[Reply, ...] = ()


def acting(task: Task, actions: Sequence[Action], *, met: bool = True) -> Script:
    """Return a script in which each role performs its ``actions`` in order until the task ends."""
    said: dict[str, list[Reply]] = {"assistant": [], "user": ["Hello, I need help."]}
    turn = "assistant"
    for action in actions:
        if action.requestor != turn:
            said[turn].append("Please go on.")
            turn = action.requestor
        said[turn].append(((action.name, action.arguments),))
    if turn == "user":
        said[turn].append("It is done.")
    said["assistant"].append(" ".join(["That is all.", *(criteria(task).communicate_info or [])]))
    results = [
        {"expectedOutcome": expected, "reasoning": "As told.", "metExpectation": met}
        for expected in criteria(task).nl_assertions or []
    ]
    verdict = json.dumps({"results": results})
    return Script(tuple(said["assistant"]), (*said["user"], STOP), (verdict,))


def whole(task: Task) -> Script:
    return acting(task, golden(task))


def badly_judged(task: Task) -> Script:
    return acting(task, golden(task), met=False)


def without_the_last(task: Task) -> Script:
    return acting(task, golden(task)[:-1])


def without_any(task: Task) -> Script:
    return acting(task, [])


def mistaken(task: Task) -> Script:
    """Return a script with a wrong value in the last action that has a string argument."""
    actions = golden(task)
    for place in reversed(range(len(actions))):
        texts = [key for key, value in actions[place].arguments.items() if isinstance(value, str)]
        if texts:
            wrong = {**actions[place].arguments, texts[0]: "other"}
            actions[place] = actions[place].model_copy(update={"arguments": wrong})
            break
    return acting(task, actions)


def several_at_once(task: Task) -> Script:
    """Return a script with several calls in one reply."""
    said, agent = whole(task), list[Reply]()
    for reply in said.agent:
        if agent and isinstance(reply, tuple) and isinstance(agent[-1], tuple):
            agent[-1] += reply
        else:
            agent.append(reply)
    return Script(tuple(agent), said.user, said.judge)


def hung_up(task: Task) -> Script:
    """Return a script in which the customer hangs up before the agent's first reply."""
    return Script(user=(STOP,), judge=whole(task).judge)


WAYS: list[Callable[[Task], Script]] = [
    whole, without_the_last, several_at_once, mistaken, whole, without_any, badly_judged, hung_up,
]  # fmt: skip


def criteria(task: Task) -> Any:
    return task.evaluation_criteria


def golden(task: Task) -> list[Action]:
    """Return the actions expected by the benchmark."""
    return list(criteria(task).actions or [])


def benchmark_task(task: dict[str, str]) -> Task:
    return tau2_bench.tasks_by_id(task["domain"])[task["id"]]


def plays(domain: str) -> list[tuple[dict[str, str], Script]]:
    """Pair every task of a domain with a script, cycling through correct and wrong ones."""
    return [
        (task, WAYS[number % len(WAYS)](benchmark_task(task)))
        for number, task in enumerate(TASKS[domain])
    ]


# -- the benchmark's own runner ------------------------------------------------------------------


class ScriptedApi:
    """A mock of OpenAI's chat completions API with scripted replies for each model."""

    def __init__(self, replies: dict[str, Iterable[Reply]]) -> None:
        self._replies = {model: iter(said) for model, said in replies.items()}
        self._count = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Return the next reply of the requested model."""
        model = json.loads(request.content)["model"]
        self._count += 1
        choice = {"index": 0, "finish_reason": "stop", "message": self._message(model)}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": f"c{self._count}", "object": "chat.completion", "created": 0, "model": model}
        return httpx.Response(200, json={**head, "choices": [choice], "usage": usage})

    def _message(self, model: str) -> dict[str, Any]:
        reply = next(self._replies[model])
        if isinstance(reply, str):
            return {"role": "assistant", "content": reply}
        calls = [
            {
                "id": f"call-{self._count}-{place}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for place, (name, arguments) in enumerate(reply)
        ]
        return {"role": "assistant", "content": None, "tool_calls": calls}


def rewarded_by_the_benchmark(
    task: dict[str, str], said: Script, monkeypatch: pytest.MonkeyPatch
) -> float | None:
    """Return the reward that ``tau2 run`` gives a scripted task, or None if it fails."""
    api = ScriptedApi({"agent": said.agent, "user": said.user, JUDGE: said.judge})
    once: dict[str, Any] = {"num_retries": 0}
    names: dict[str, Any] = {"llm_agent": "openai/agent", "llm_user": "openai/user"}
    options: dict[str, Any] = {"llm_args_agent": once, "llm_args_user": once}
    config = TextRunConfig(
        domain=task["domain"], max_retries=0, max_concurrency=1, **names, **options
    )
    with monkeypatch.context() as patch:
        patch.setattr(litellm.client_session, "_transport", httpx.MockTransport(api))
        results = run_tasks(config, [benchmark_task(task)], console_display=False)
    [run] = results.simulations
    return None if run.reward_info is None else float(run.reward_info.reward)


# -- evert ---------------------------------------------------------------------------------------


def as_text(reply: Reply) -> str:
    """Return a reply in the format of the default renderer's model."""
    if isinstance(reply, str):
        return reply
    written = [json.dumps({"name": name, "arguments": said}) for name, said in reply]
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in written)


def model(replies: Iterable[Reply]) -> ScriptedPolicy:
    return ScriptedPolicy([as_text(reply) for reply in replies])


def models(said: Script) -> dict[str, ScriptedPolicy]:
    """Return the scripted models of a task by name."""
    return {"agent": model(said.agent), "user": model(said.user), JUDGE: model(said.judge)}


async def played(task: dict[str, str], said: Script) -> Trajectory:
    """Play an episode with the agent as the policy; assert that it is a single, exact datum."""
    others = models(said)
    policy = others.pop("agent")
    env = ChatAgentEnv(tau2_bench.agent, task, models=others)
    trajectory = await do_single_rollout(policy, env)
    if policy.actions:
        assert [turn.ac.tokens for turn in trajectory.transitions] == policy.actions
        assert len(trajectory_to_data(trajectory, 1.0)) == 1
    return trajectory


async def customer_played(task: dict[str, str], said: Script) -> Trajectory:
    """Play an episode with the customer as the policy."""
    others = models(said)
    policy = others.pop("user")
    return await do_single_rollout(policy, ChatAgentEnv(tau2_bench.user, task, models=others))


async def both_played(task: dict[str, str], said: Script) -> list[Trajectory]:
    """Play an episode with two seats, of which the agent is the first."""
    others = models(said)
    policies = [others.pop("agent"), others.pop("user")]
    envs = seat_envs(tau2_bench.agent_and_user, ("agent", "user"), task, models=others)
    episode = [do_single_rollout(p, env) for p, env in zip(policies, envs, strict=True)]
    return await asyncio.gather(*episode)


async def rewarded_by_evert(task: dict[str, str], said: Script) -> float | None:
    """Return an episode's reward, or None if the benchmark fails."""
    try:
        return reward(await played(task, said))
    except AgentError:
        return None


# -- the benchmark ----------------------------------------------------------------------------


def test_the_benchmark_is_the_checkout_of_tau2_bench() -> None:
    assert Path(tau2.__file__).is_relative_to(Path(os.environ["TAU2_BENCH"]).resolve())


# -- rewards ----------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", TASKS)
async def test_every_task_earns_the_reward_of_the_benchmarks_own_runner(
    domain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = [
        await asyncio.to_thread(rewarded_by_the_benchmark, task, said, monkeypatch)
        for task, said in plays(domain)
    ]
    ours = await asyncio.gather(*(rewarded_by_evert(task, said) for task, said in plays(domain)))

    assert ours == theirs
    assert {0.0, 1.0} <= {*ours}


@pytest.mark.parametrize("domain", TASKS)
async def test_scripts_with_the_benchmarks_expected_actions_earn_one(domain: str) -> None:
    """Without this test, the rewards above could be equal just because nothing ever worked."""
    for task in TASKS[domain][:2]:
        trajectory = await played(task, whole(benchmark_task(task)))

        assert reward(trajectory) == 1.0


# -- roles ------------------------------------------------------------------------------------


async def test_the_reward_does_not_depend_on_which_roles_are_the_policy() -> None:
    for task, said in plays("telecom")[:4]:
        as_agent = await played(task, said)
        as_customer = await customer_played(task, said)
        agents, customers = await both_played(task, said)

        earned = {reward(each) for each in (as_agent, as_customer, agents, customers)}
        assert len(earned) == 1
        assert len(agents.transitions) == len(said.agent)
        assert len(as_customer.transitions) == len(customers.transitions) == len(said.user)


# -- metrics and logs -------------------------------------------------------------------------


async def test_the_components_of_the_reward_are_metrics_and_the_reason_for_the_end_is_logged() -> (
    None
):
    task = TASKS["retail"][0]
    trajectory = await played(task, without_any(benchmark_task(task)))

    last = trajectory.transitions[-1]
    assert {"reward_db": 0.0, "reward_nl_assertion": 1.0}.items() <= last.metrics.items()
    assert last.logs["task"] == f"retail {task['id']}"
    assert last.logs["ended"] == "user_stop"


# -- cancellation -----------------------------------------------------------------------------


async def test_cancelling_an_episode_at_its_second_call_leaves_nothing_behind() -> None:
    task = TASKS["telecom"][0]
    said = models(whole(benchmark_task(task)))
    policy = said.pop("agent")

    await give_up_at_the_second_call(ChatAgentEnv(tau2_bench.agent, task, models=said), policy)


# -- commands ---------------------------------------------------------------------------------

SHORT = ["on_agent_error=0.0", "max_tokens=16", "limits.max_turns=3", "device=cpu", "threads=1"]
"""Keeps the tiny base model's episodes short."""

CUSTOMER = ["models.user=evert-tiny", "models.user.max_tokens=16"]
BOTH = ["tasks.plays=both"]


def train(folder: Path, *settings: str) -> int:
    """Train for two steps from the command line and return the exit status."""
    sizes = ["steps=2", "batch_size=2", "group_size=2", f"log_path={folder}"]
    return evert_command(["train", *settings, *sizes, *SHORT])


@pytest.mark.parametrize(
    ("settings", "episodes"),
    [(CUSTOMER, 4), (BOTH, 8)],
    ids=["the agent", "both"],
)
def test_the_command_trains_the_agent_or_both(
    settings: list[str], episodes: int, tmp_path: Path
) -> None:
    ranked = f"cookbook.dataset_builder.group_reward={by_rank.__module__}:{by_rank.__name__}"

    assert train(tmp_path, "tasks=tau2_bench:mock", ranked, *settings) == 0

    rows = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    steps = [row for row in rows if "env/all/total_episodes" in row]
    assert [step["env/all/total_episodes"] for step in steps] == [episodes] * 2
    assert all(step["optim/grad_norm"] > 0 for step in steps)


def test_a_run_whose_prompts_do_not_fit_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "run", "tasks=tau2_bench:retail", *CUSTOMER) == 1

    printed = capsys.readouterr()
    assert "step 1 is skipped: 4 of 4 episodes failed (4 context overflows)" in printed.out
    assert "use a model with a longer context" in printed.err
    assert "Traceback" not in printed.out + printed.err
