"""Train Blackjack policies through ``GymAgent`` and compare them with basic strategy.

    python benchmarks/blackjack.py [--quick] [--seeds 0 1 2] [--hands 4000] [SETTING=VALUE ...]

Each run is ``evert train tasks=gymnasium:Blackjack-v1 seed=N``. The trained weights then play hands
with new seeds. The cost of a decision is the expected return it gives up compared with the optimal
basic strategy. Averaged over games, the sum of these costs is the gap between the return of the
policy and the return of basic strategy. This estimate is much less noisy than the difference
between the two returns (the performance difference lemma of Kakade and Langford, ICML 2002). The
benchmark fails if a run is more than 0.03 below basic strategy.

Basic strategy is computed exactly, with dynamic programming over the player's sum, usable ace and
the dealer's card. Gymnasium follows Example 5.1 in Sutton and Barto's "Reinforcement Learning": an
infinite deck, a dealer who sticks on 17, no doubling and no splitting. The strategy was first
computed by Baldwin, Cantey, Maisel and McDermott (1956), and popularized by Thorp's "Beat the
Dealer" (1962).
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from gymnasium import spaces
from rich.console import Console
from rich.table import Table

from evert.envs.from_gymnasium.actions import Actions
from evert.trainers.commands.train import train
from evert.trainers.config.evaluate import read_evaluate_settings
from evert.trainers.config.plan import prepare
from evert.trainers.episodes.players import find
from evert.trainers.episodes.playing import EpisodeResult, plan_episodes, play
from evert.trainers.system.command import run_async
from evert.trainers.system.provenance import origin
from evert.trainers.training.progress import quiet_progress_bars

BAR = 0.03
"""How far a policy's return may fall below that of basic strategy."""

FRESH = 1_000_000
"""First seed of the evaluated hands. Training uses seeds below 10,000."""

QUICK = {"steps": 2, "batch_size": 4, "warm_up_steps": 2}

CARDS = {card: (4 if card == 10 else 1) / 13 for card in range(1, 11)}
"""Card value -> probability. An ace counts as 1; four ranks count as 10."""

STICK, HIT = 0, 1
ACTIONS = Actions(spaces.Discrete(2), {STICK: "Stick", HIT: "Hit"})

# -- basic strategy ------------------------------------------------------------------------------


def drawn(total: int, ace: bool, card: int) -> tuple[int, bool]:
    """Return the hand's sum and whether it has a usable ace after drawing one more card."""
    if card == 1 and total <= 10:
        return total + 11, True
    total += card
    return (total - 10, False) if ace and total > 21 else (total, ace)


@cache
def dealers(total: int, ace: bool) -> dict[int, float]:
    """Return the probability of each final dealer sum (0 means bust)."""
    if total >= 17:
        return {total if total <= 21 else 0: 1.0}
    chances: dict[int, float] = {}
    for card, chance in CARDS.items():
        for last, further in dealers(*drawn(total, ace, card)).items():
            chances[last] = chances.get(last, 0.0) + chance * further
    return chances


@cache
def value(total: int, ace: bool, dealer: int, action: int) -> float:
    """Return the expected return of taking an action and then playing basic strategy."""
    if action == STICK:
        chances = dealers(*drawn(0, False, dealer))
        return sum(p * ((last < total) - (last > total)) for last, p in chances.items())
    hands = [(drawn(total, ace, card), chance) for card, chance in CARDS.items()]
    return sum(p * (best(*hand, dealer) if hand[0] <= 21 else -1.0) for hand, p in hands)


def best(total: int, ace: bool, dealer: int) -> float:
    """Return the expected return of a hand under basic strategy."""
    return max(value(total, ace, dealer, action) for action in (STICK, HIT))


def best_return() -> float:
    """Return basic strategy's mean return per game. A natural wins unless the dealer has one."""
    total = 0.0
    for first, p in CARDS.items():
        for second, q in CARDS.items():
            hand = drawn(*drawn(0, False, first), second)
            for dealer, r in CARDS.items():
                natural = {1: CARDS[10], 10: CARDS[1]}.get(dealer, 0.0)
                worth = 1.0 - natural if hand[0] == 21 else best(*hand, dealer)
                total += p * q * r * worth
    return total


def cost(told: str, said: str) -> float:
    """Return how much expected return a reply gives up. An unreadable reply loses the game."""
    found = re.search(r"Sum (\d+), (usable ace, )?dealer (\d+)\.", told)
    assert found is not None, told
    hand = int(found[1]), bool(found[2]), int(found[3])
    action, _ = ACTIONS.read(said)
    return best(*hand) - (-1.0 if action is None else value(*hand, action))


# -- the runs ------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a run ends too far below basic strategy."""
    options = parse(argv)
    quiet_progress_bars()
    console = Console(highlight=False)
    out = Path(options.out)
    results = []
    for seed in options.seeds:
        console.rule(f"seed {seed}")
        folder = out / f"seed{seed}"
        given = dict(pair.split("=", 1) for pair in options.settings)
        values = {**(QUICK if options.quick else {}), **given, "seed": str(seed)}
        run = train(tasks="gymnasium:Blackjack-v1", log_path=str(folder), console=console, **values)
        after = {heat: below(folder, heat, options.hands, console) for heat in (0.0, 1.0)}
        results.append({"seed": seed, "seconds": run.result["seconds"], "below": after})
        console.print(results[-1])
    out.mkdir(parents=True, exist_ok=True)
    record = {"command": sys.argv, **origin(), "basic": best_return(), "runs": results}
    (out / "blackjack.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    console.print(table(results))
    failed = [r["seed"] for r in results if not options.quick and r["below"][0.0]["mean"] > BAR]
    for seed in failed:
        print(f"FAILED seed {seed}: more than {BAR} below basic strategy", file=sys.stderr)
    return 1 if failed else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--hands", type=int, default=4000, help="hands to evaluate (default: 4000)")
    parser.add_argument("--quick", action="store_true", help="short runs, target not checked")
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    parser.add_argument("--out", default=f"runs/benchmark-blackjack-{stamp}", help="results folder")
    parser.add_argument("settings", nargs="*", help="evert train settings, such as steps=50")
    return parser.parse_args(argv)


def below(folder: Path, temperature: float, hands: int, console: Console) -> dict[str, float]:
    """Return the mean gap to basic strategy, its standard error, and the mean return."""
    given = {
        "tasks": "gymnasium:Blackjack-v1",
        "models": str(folder),
        "temperature": str(temperature),
    }
    contestant = find(str(folder), prepare(read_evaluate_settings(given), [str(folder)]))
    games = plan_episodes("", "", {"test": range(FRESH, FRESH + hands)}, [0])
    with contestant.ready(console.print) as player:
        played: list[EpisodeResult] = run_async(play(games, replace(player, dialogues=True)))
    costs = [sum(cost(turn["told"], turn["said"]) for turn in game.dialogue) for game in played]
    return {
        "mean": statistics.fmean(costs),
        "error": statistics.stdev(costs) / hands**0.5,
        "return": statistics.fmean(game.reward or 0.0 for game in played),
    }


def table(results: Sequence[dict[str, Any]]) -> Table:
    """Return the results table, with one row per run."""
    shown = Table(title=f"Blackjack: basic strategy returns {best_return():.4f} per game")
    for column in ("seed", "seconds", "below it, greedy", "below it, at T = 1"):
        shown.add_column(column, no_wrap=True)
    for result in results:
        figures = [result["below"][heat] for heat in (0.0, 1.0)]
        cells = [f"{figure['mean']:.4f} ± {figure['error']:.4f}" for figure in figures]
        shown.add_row(str(result["seed"]), f"{result['seconds']['total']:.0f}", *cells)
    return shown


if __name__ == "__main__":
    sys.exit(main())
