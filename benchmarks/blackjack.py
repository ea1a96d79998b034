"""How well does a policy learn Blackjack through ``GymAgent``, compared with basic strategy?

    python benchmarks/blackjack.py [--quick] [--seeds 0 1 2] [--hands 4000] [SETTING=VALUE ...]

Each run is ``evert train tasks=gymnasium:Blackjack-v1 seed=N``. Then the trained weights play new
seeds. The cost of a decision is the expected return that it loses against basic strategy, which is
optimal. The mean of a game's total cost is the policy's distance from basic strategy's return, and
has far less noise than returns (the performance difference of Kakade and Langford, ICML 2002). A
run whose distance is over 0.03 fails the benchmark.

Basic strategy is computed exactly, by dynamic programming over the player's sum, a usable ace and
the dealer's card, for Gymnasium's rules: Example 5.1 of Sutton and Barto's "Reinforcement Learning"
(an infinite deck, the dealer sticks on 17, no doubling and no splitting). Baldwin, Cantey, Maisel
and McDermott first computed the strategy (1956); Thorp's "Beat the Dealer" (1962) made it known.
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
"""How far a policy's return may be below basic strategy's."""

FRESH = 1_000_000
"""The first seed of the measured hands; training uses seeds below 10,000."""

QUICK = {"steps": 2, "batch_size": 4, "warm_up_steps": 2}

CARDS = {card: (4 if card == 10 else 1) / 13 for card in range(1, 11)}
"""Value of a card -> its probability. An ace has the value 1; four ranks have 10."""

STICK, HIT = 0, 1
ACTIONS = Actions(spaces.Discrete(2), {STICK: "Stick", HIT: "Hit"})

# -- basic strategy ------------------------------------------------------------------------------


def drawn(total: int, ace: bool, card: int) -> tuple[int, bool]:
    """Return a hand's sum and whether it has a usable ace, after one more card."""
    if card == 1 and total <= 10:
        return total + 11, True
    total += card
    return (total - 10, False) if ace and total > 21 else (total, ace)


@cache
def dealers(total: int, ace: bool) -> dict[int, float]:
    """Return the probabilities of the dealer's final sum; 0 means a bust."""
    if total >= 17:
        return {total if total <= 21 else 0: 1.0}
    chances: dict[int, float] = {}
    for card, chance in CARDS.items():
        for last, further in dealers(*drawn(total, ace, card)).items():
            chances[last] = chances.get(last, 0.0) + chance * further
    return chances


@cache
def value(total: int, ace: bool, dealer: int, action: int) -> float:
    """Return the expected return of an action, followed by basic strategy."""
    if action == STICK:
        chances = dealers(*drawn(0, False, dealer))
        return sum(p * ((last < total) - (last > total)) for last, p in chances.items())
    hands = [(drawn(total, ace, card), chance) for card, chance in CARDS.items()]
    return sum(p * (best(*hand, dealer) if hand[0] <= 21 else -1.0) for hand, p in hands)


def best(total: int, ace: bool, dealer: int) -> float:
    """Return the expected return of a hand with basic strategy."""
    return max(value(total, ace, dealer, action) for action in (STICK, HIT))


def best_return() -> float:
    """Return basic strategy's mean return per game. A natural draws only against a natural."""
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
    """Return the expected return that a reply loses; an unreadable reply loses the game."""
    found = re.search(r"Sum (\d+), (usable ace, )?dealer (\d+)\.", told)
    assert found is not None, told
    hand = int(found[1]), bool(found[2]), int(found[3])
    action, _ = ACTIONS.read(said)
    return best(*hand) - (-1.0 if action is None else value(*hand, action))


# -- the runs ------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 1 if a run ends too far below basic strategy."""
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
        print(f"FAILED seed {seed}: over {BAR} below basic strategy", file=sys.stderr)
    return 1 if failed else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--hands", type=int, default=4000, help="hands measured (default: 4000)")
    parser.add_argument("--quick", action="store_true", help="short runs without a bar")
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    parser.add_argument("--out", default=f"runs/benchmark-blackjack-{stamp}", help="folder")
    parser.add_argument("settings", nargs="*", help="settings of evert train: steps=50")
    return parser.parse_args(argv)


def below(folder: Path, temperature: float, hands: int, console: Console) -> dict[str, float]:
    """Return a policy's mean distance below basic strategy, its standard error, and its return."""
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
    """Return the table of results, one row per run."""
    shown = Table(title=f"Blackjack: basic strategy gets {best_return():.4f} per game")
    for column in ("seed", "seconds", "below it, greedy", "below it, at T = 1"):
        shown.add_column(column, no_wrap=True)
    for result in results:
        figures = [result["below"][heat] for heat in (0.0, 1.0)]
        cells = [f"{figure['mean']:.4f} ± {figure['error']:.4f}" for figure in figures]
        shown.add_row(str(result["seed"]), f"{result['seconds']['total']:.0f}", *cells)
    return shown


if __name__ == "__main__":
    sys.exit(main())
