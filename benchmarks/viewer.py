"""Benchmark ``evert view`` with many episodes, and while a run is training.

    python benchmarks/viewer.py [--quick] [--episodes 100000] [--steps 120]

The first part writes scripted guess-number rollouts to disk, as a run of 100 steps with groups of
eight. It then requests every view, first while the index is being built and then with a complete
index. The second part trains identity with the default settings while a viewer receives the
requests that its web page would send: for the state every two seconds, and for the run view after
changes, but only after the delay that the previous response asked for. The benchmark fails if a
result misses its target.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from evert import ChatAgentGroupBuilder, Recorder, ScriptedPolicy
from evert.envs.guess_number import guess_number_agent

STEPS, GROUP = 100, 8
REPEATS = 15
BARS = {"opens": 2.0, "a view": 0.3, "memory": 300.0, "share": 0.01}


class Page:
    """Sends the requests of a browser to a viewer process."""

    def __init__(self, link: str, process: psutil.Process) -> None:
        self.address, _, token = link.partition("?token=")
        self.process, self._allowed = process, {"Authorization": f"Bearer {token}"}

    def get(self, what: str) -> tuple[Any, float]:
        """Return the response and the number of seconds to wait before the next request."""
        asked = urllib.request.Request(f"{self.address}api/{what}", headers=self._allowed)
        with urllib.request.urlopen(asked) as answer:
            return json.loads(answer.read()), float(answer.headers["Evert-Again"])

    def seconds(self, what: str, repeats: int = REPEATS) -> list[float]:
        """Send the same request ``repeats`` times; return how long each took."""
        found = []
        for _ in range(repeats):
            before = time.perf_counter()
            self.get(what)
            found.append(time.perf_counter() - before)
        return found


@contextmanager
def viewer(folder: Path, cache: Path) -> Iterator[Page]:
    """Start a viewer for a folder, in another process."""
    command = [sys.executable, "-m", "evert.trainers.cli", "view", str(folder)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield Page(process.stdout.readline().strip(), psutil.Process(process.pid))
        finally:
            process.terminate()


def write_run(folder: Path, episodes: int) -> None:
    """Write a run with ``episodes`` records, by playing a few and writing them repeatedly."""
    recorder = Recorder(folder / "played.jsonl")
    policy = ScriptedPolicy(lambda prompt: f"Guess: {len(prompt) * 7919 % 1024}")
    from tinker_cookbook.rl.rollouts import do_group_rollout

    async def play() -> None:
        for task in range(8):
            builder = ChatAgentGroupBuilder(guess_number_agent, task, GROUP, record=recorder)
            await do_group_rollout(builder, policy)

    asyncio.run(play())
    rows = [json.loads(line) for line in (folder / "played.jsonl").read_text().splitlines()]
    (folder / "played.jsonl").unlink()
    (folder / "rollouts").mkdir()
    for step in range(STEPS):
        with (folder / "rollouts" / f"{step:06}.jsonl").open("w") as out:
            for number in range(episodes // STEPS):
                row = rows[number % len(rows)] | {"iteration": step, "traj_idx": number % GROUP}
                row |= {"group_idx": number // GROUP, "total_reward": number * 7919 % 1000 / 1000}
                out.write(json.dumps(row) + "\n")
    metrics = ({"step": step, "progress/done_frac": step / STEPS, "time/total": 1.0,
                "env/all/reward/total": step / STEPS} for step in range(STEPS))  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    (folder / "run.json").write_text(json.dumps({"name": "many", "settings": {"steps": STEPS}}))


def many(episodes: int, home: Path) -> dict[str, float]:
    """Return how long each view takes, and the memory of the viewer process."""
    run = home / "runs" / "many"
    run.mkdir(parents=True)
    write_run(run, episodes)
    whole = episodes // STEPS * STEPS
    found = {"megabytes of rollouts": sum(f.stat().st_size for f in run.rglob("*.jsonl")) / 1e6}
    before = time.perf_counter()
    with viewer(home / "runs", home / "cache") as page:
        page.get("runs")
        found["opens, without an index"] = time.perf_counter() - before
        slowest = 0.0
        while sum(each["episodes"] for each in page.get("runs")[0]["runs"]) < whole:
            slowest = max([slowest, *page.seconds("runs", 1)])
            time.sleep(0.1)
        found["view of the runs while it reads"] = slowest
        found["has read all"] = time.perf_counter() - before
    before = time.perf_counter()
    with viewer(home / "runs", home / "cache") as page:
        runs = page.get("runs")[0]["runs"]
        found["opens, with an index"] = time.perf_counter() - before
        step = page.get("step?run=1&split=train&model=&step=99")[0]["episodes"]
        for name, what in {
            "view of the runs": "runs",
            "view of a run": "run?run=1",
            "view of a step": "step?run=1&split=train&model=&step=99",
            "view of an episode": f"episode?id={step[-1]['id']}",
            "search, a common word": "search?words=guess",
            "search, a rare one": "search?words=zebra",
        }.items():
            found[name] = max(page.seconds(what))
        found["megabytes of memory"] = page.process.memory_full_info().uss / 1e6
    assert runs[0]["episodes"] == runs[0]["recorded"] == whole
    return found


def beside(steps: int, home: Path) -> dict[str, float]:
    """Return the CPU time of a run, and of a viewer that is in use during it."""
    folder = home / "beside"
    folder.mkdir()
    command = [sys.executable, "-m", "evert.trainers.cli", "train", "env=identity"]
    command += [f"steps={steps}", "eval_every=0", f"log_path={folder / 'run'}"]
    with (
        viewer(folder, home / "cache") as page,
        subprocess.Popen(command, stdout=subprocess.DEVNULL) as run,
    ):
        trained, not_before, seen, spent = psutil.Process(run.pid), 0.0, None, 0.0
        while not (there := page.get("runs")[0]["runs"]):
            time.sleep(1)
        started = sum(page.process.cpu_times()[:2])
        while run.poll() is None:
            spent = sum(trained.cpu_times()[:4])
            version = page.get("state")[0]["version"]
            if version != seen and time.monotonic() > not_before:
                _, again = page.get(f"run?run={there[0]['id']}")
                seen, not_before = version, time.monotonic() + again
            time.sleep(2)
        looked = sum(page.process.cpu_times()[:2]) - started
    return {"processor seconds of the run": spent, "of the viewer": looked,
            "share of the viewer": looked / spent}  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; return 1 if a result misses its target."""
    about = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    about.add_argument("--quick", action="store_true", help="1,000 episodes, a 4-step run")
    about.add_argument("--episodes", type=int, default=100_000, help="default: 100,000")
    about.add_argument("--steps", type=int, default=120, help="steps of the run (default: 120)")
    given = about.parse_args(argv)
    sizes = (1_000, 4) if given.quick else (given.episodes, given.steps)
    table = Table("what", "measured", "target")
    with tempfile.TemporaryDirectory() as home:
        found = many(sizes[0], Path(home)) | beside(sizes[1], Path(home))
    missed = []
    for name, value in found.items():
        kinds = {"opens": name.startswith("opens"), "a view": name.startswith(("view", "search")),
                 "memory": "memory" in name, "share": "share" in name}  # fmt: skip
        bar = next((BARS[kind] for kind, holds in kinds.items() if holds), None)
        table.add_row(name, f"{value:,.3f}", "" if bar is None else f"{bar:g}")
        if bar is not None and value > bar:
            missed.append(f"{name}: {value:,.3f}, target {bar:g}")
    Console().print(table)
    print(f"in seconds unless the row states otherwise; views: slowest of {REPEATS} requests")
    for each in missed:
        print(f"FAILED {each}", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
