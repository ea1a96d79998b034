"""Send hostile answers to the scorers of all reasoning-gym generators.

    python benchmarks/hostile_answers.py [--quick] [--answers 3000] [--seed 1] [--only countdown]

Half of the answers come from a list: powers, exponents, deeply nested brackets, code, numbers with
thousands of digits, and strings that make regular expressions backtrack. The other half are correct
answers in which numbers or symbols are replaced with such strings. Each answer is a policy's reply
in an episode, and two episodes are played concurrently. Before that, each generator plays one
episode with the correct answer, so that its scorer's imports are not measured.

The benchmark fails if an answer takes more than 5 s from reply to reward, if the event loop's
thread is blocked for 0.25 s of CPU time, if an episode fails, if an answer creates a file, or if a
process is left at the end.
"""

import argparse
import asyncio
import os
import random
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil
from rich.console import Console
from tinker import ModelInput
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv
from evert.bridge.isolation import end_server
from evert.bridge.tokens.renderer import prompt_renderer
from evert.envs.tasksets.reasoning_gym import Reasoning

MOST_SECONDS, LONGEST_STALL = 5.0, 0.25
PLAYED_AT_ONCE = 2
ITEMS = 5
"""Items per generator whose answers are mutated."""
LONGEST = 50_000
"""Maximum length of an answer, in characters."""
MARK = Path(tempfile.gettempdir()) / f"evert-hostile-{os.getpid()}"
"""A file that no answer may be able to create."""

NUMBERS = [
    "1e-9999999", "1e9999999", "1e-99999999999", "9**9**9**9", "9^9^9^9", "9" * 4000, "9" * 50_000,
    "-" * 2000 + "1", "1/" * 2000 + "1", "0x" + "f" * 9000, "nan", "inf", "1_" * 5000 + "1",
    "٣" * 100, "(" * 900 + "1" + ")" * 900, "1e308*10", "factorial(99999999)", "1j**1j",
    "0." + "0" * 9000 + "1", "sqrt(" * 90 + "2" + ")" * 90, "x**99999", "(x+1)**9", "½",
]  # fmt: skip
TEXTS = [
    *NUMBERS,
    *(f"{number} = {number}" for number in NUMBERS[:4]),
    f"__import__('pathlib').Path({str(MARK)!r}).touch()",
    "().__class__.__base__.__subclasses__()", "__import__('os').abort()", "exit()",
    "[0" + " for a in '0123456789'" * 10 + "]", "lambda: 1", "'a'*10**10", "[0]*10**10",
    "(tan(((x+1))*(x+1)))**9", "(Abs(((exp(((Abs(x))/3)*2))/3+1)))/x", "(sin(x)+cos(x))**9",
    "integrate(exp(-x**x), x)", "Integral(sin(x**x), x)", "N(pi, 99999999)", "exp(9999*log(9))",
    "[" * 20_000, "{" * 20_000, "[" * 400 + "]" * 400, '{"a":' * 20_000, "[[" + "1," * 20_000,
    "\n" * 20_000, " " * 50_000 + "x", "a" * 50_000, "a " * 20_000, "<answer>" * 5000,
    "<answer>" + "\n" * 20_000 + "</answer", "<answer>1e-9999999</answer>", "1,2,3," * 5000,
    "-> " * 9000, "0 " * 20_000, "1\n" * 9000, "\\frac{" * 2000, "\0", "\ud7ff\uffff" * 2000,
    "A" * 99 + "!" * 9000, "(" + "a|" * 9000 + ")", "Move disk 1 from Peg 1 to Peg 2\n" * 900,
    "if " * 5000, "not (" * 3000, "R U R' U' " * 2000, "up down left right " * 2000, "'\"" * 5000,
]  # fmt: skip


def changed(answer: str, rng: random.Random) -> str:
    """Return a correct answer with one to three mutations."""
    for _ in range(rng.randint(1, 3)):
        places = [match.span() for match in re.finditer(r"\d+|\w+|[^\w\s]", answer[:5000])]
        start, end = rng.choice(places or [(0, 0)])
        old = answer[start:end]
        new = rng.choice([rng.choice(NUMBERS), old * 2000, f"{old}**9", f"({old}e9999999)", ""])
        answer = (answer[:start] + new + answer[end:])[:LONGEST]
    return (answer * rng.choice([1, 1, 1, 50]))[:LONGEST]


@dataclass
class Found:
    """The measurements.

    Attributes:
        seconds: For each answer, the seconds from reply to reward, the generator and the text.
        stopped: How often each generator's scorer was stopped.
        stall: The longest stall of the event loop, in CPU seconds of its thread.
        failures: The errors that episodes raised.
    """

    seconds: list[tuple[float, str, str]] = field(default_factory=list)
    stopped: Counter[str] = field(default_factory=Counter)
    stall: float = 0.0
    failures: list[str] = field(default_factory=list)

    async def beat(self) -> None:
        """Measure stalls with a heartbeat on the event loop."""
        before = time.thread_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.thread_time()
            self.stall = max(self.stall, now - before)
            before = now


class Sampler(TokenCompleter):
    """A policy with one fixed reply, tokenized in a thread. ``said`` is the time of its reply."""

    def __init__(self, reply: str) -> None:
        self.reply = reply
        self.said = 0.0

    async def __call__(
        self, model_input: ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """Return the reply."""
        renderer = prompt_renderer(None)
        tokens = await asyncio.to_thread(renderer.encode, self.reply)
        self.said = time.monotonic()
        return TokensWithLogprobs(tokens + renderer.end_tokens[:1], [-1.0] * (len(tokens) + 1))


async def played(agent: Reasoning, reply: str, task: int) -> tuple[float, bool]:
    """Return the time from reply to reward in seconds, and whether the scorer was stopped."""
    sampler = Sampler(reply)
    trajectory = await do_single_rollout(sampler, ChatAgentEnv(agent, task))
    took = time.monotonic() - sampler.said
    return took, bool(trajectory.transitions[-1].metrics["scorer_stopped"])


async def attack(options: argparse.Namespace, found: Found) -> None:
    """Play one episode per answer."""
    from reasoning_gym.factory import DATASETS

    rng = random.Random(options.seed)
    names = options.only or sorted(DATASETS.keys() - {"composite"})
    agents = {name: Reasoning(name, size=ITEMS) for name in names}
    todo: list[tuple[str, str, int]] = []
    for name, agent in agents.items():
        answers = [str(agent.item(task)[1]["answer"]) for task in range(ITEMS)]
        await played(agent, answers[0], 0)
        for number in range(options.answers // len(names) + 1):
            task = rng.randrange(ITEMS)
            reply = changed(answers[task], rng) if number % 2 else rng.choice(TEXTS)
            todo.append((name, reply, task))
    rng.shuffle(todo)
    del todo[options.answers :]
    watch = asyncio.create_task(found.beat())

    async def work() -> None:
        while todo:
            name, reply, task = todo.pop()
            try:
                took, stopped = await played(agents[name], reply, task)
            except Exception as error:
                found.failures.append(f"{name}: {type(error).__name__}: {error}")
                continue
            found.seconds.append((took, name, reply))
            found.stopped[name] += stopped

    await asyncio.gather(*(work() for _ in range(PLAYED_AT_ONCE)))
    watch.cancel()


def main() -> int:
    """Run the benchmark; return 1 if a result misses its target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="105 answers, one per generator")
    parser.add_argument("--answers", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", help="generator names")
    options = parser.parse_args()
    if options.quick:
        options.answers = 105
    warnings.simplefilter("ignore")  # importing reasoning-gym emits some
    found = Found()
    asyncio.run(attack(options, found))
    [server] = psutil.Process().children()
    _, left = psutil.wait_procs(server.children(), timeout=10)
    end_server()
    left += psutil.Process().children()
    slowest = sorted(found.seconds, reverse=True)
    console = Console()
    console.print(
        f"{len(slowest):,} answers: median {1000 * median(took for took, *_ in slowest):.0f} ms, "
        f"slowest {slowest[0][0]:.2f} s, longest stall of the loop {found.stall:.3f} s; "
        f"stopped: {found.stopped.total()} ({dict(+found.stopped)})"
    )
    for took, name, reply in slowest[:5]:
        console.print(f"{took:6.2f} s  {name}: {reply[:60]!r}", markup=False)
    wrong = [
        *found.failures,
        *[f"{name} took {took:.1f} s" for took, name, _ in slowest if took > MOST_SECONDS],
        *[f"the event loop was blocked for {found.stall:.2f} s"] * (found.stall >= LONGEST_STALL),
        *["an answer created a file"] * MARK.exists(),
        *["a process is left"] * bool(left),
    ]
    for line in wrong:
        console.print(f"FAILED {line}", markup=False, style="red")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
