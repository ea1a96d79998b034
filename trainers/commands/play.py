"""``evert play env=guess_number model=me``: play one episode in the terminal, turn by turn."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import chz
from rich.console import Console
from rich.text import Text

from evert.bridge.redaction import redacted
from evert.bridge.tokens.pretrained import trusting_code
from evert.trainers.config.arguments import read_pairs
from evert.trainers.config.evaluate import ME, PlaySettings, playing_help, read_playing_settings
from evert.trainers.config.plan import PlayingPlan, prepare
from evert.trainers.rundir.folder import output_folder
from evert.trainers.system.command import run_async, run_command

if TYPE_CHECKING:
    from evert.trainers.episodes.players import Contestant

USAGE = """\
Usage: evert play model=NAME env=GAME [key=value ...]

  evert play env=guess_number model=me     type the replies yourself
  evert play agent=my_module:agent task=7 model=runs/NAME
  evert play agent=my_module:agent test_tasks=my_module:TASKS task=3 model=openai:gpt-5-mini
  evert play env=identity model=evert-tiny record=True out=plays/first

Plays one episode in the terminal. Shows the new messages of each request, the tools, the replies
and the reward, and finally the whole episode as tokens. evert evaluate plays the same episode if
you give it the same task and seed.

With model=me, each line you type is a reply; end a line with \\ to continue it on the next line. To
call one of the agent's tools, type NAME KEY=VALUE ... Press Ctrl-D to end the episode.

Settings and their values:
"""

KEYS = (chz.chz_fields(PlaySettings).keys() - {"frozen"}) | {"models"}  # models.NAME=


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see ``run_command``."""
    return run_command(lambda arguments: _run(parse(arguments)), argv, _usage)


def parse(arguments: Sequence[str]) -> PlaySettings:
    """Parse the command line."""
    return read_playing_settings(PlaySettings, read_pairs(arguments, KEYS, "env"))


def _usage(arguments: Sequence[str]) -> str:
    return USAGE + playing_help(PlaySettings, read_pairs(arguments, KEYS, "env"))


def _run(settings: PlaySettings) -> int:
    plan = prepare(settings, [settings.model] if settings.model != ME else [])
    console = Console(highlight=False, markup=False, emoji=False)
    console.soft_wrap = not console.is_terminal
    with trusting_code(settings.trust_remote_code):
        contestant = _contestant(settings, plan)
        contestant.check()
        return _play(contestant, settings, console)


def _contestant(settings: PlaySettings, plan: PlayingPlan) -> "Contestant":
    from evert.trainers.episodes.person import Person
    from evert.trainers.episodes.players import Contestant, find

    if settings.model != ME:
        return find(settings.model, plan)
    return Contestant(ME, plan, settings.agent_of(plan.run), plan.run, Person())


def _play(contestant: "Contestant", settings: PlaySettings, console: Console) -> int:
    from evert.bridge.env.env import ChatAgentEnv
    from evert.bridge.episode.agent import NO_TASK
    from evert.bridge.records.explain import harmless
    from evert.bridge.records.files import ROLLOUTS
    from evert.bridge.records.recorder import Recorder
    from evert.trainers.episodes.person import EndOfInputError
    from evert.trainers.episodes.playing import failures, plan_episodes, play
    from evert.trainers.episodes.showing import PrintingPolicy

    def say(text: str) -> None:
        console.print(harmless(Text(redacted(text))))

    tasks = contestant.plan.tasks
    number = settings.number_of(next(iter(tasks.values())))
    episode = plan_episodes(contestant.name, "", tasks, [settings.seed])[number]
    views, turn = dict[ChatAgentEnv, PrintingPolicy](), asyncio.Lock()
    if episode[1] is not NO_TASK:
        say(f"task {number}: {episode[0].target}")
    record = None
    if settings.record:
        file = f"{ROLLOUTS}.jsonl"
        record = Recorder(output_folder(settings.out, "plays", settings.name, file) / file)
        say(f"record: {record.path}")
    with contestant.ready(say) as ready:
        player = replace(
            ready,
            policy=lambda env, seed: views.setdefault(
                env, PrintingPolicy(ready.policy(env, seed), env, console, turn)
            ),
            hooks=views.get,
            record=record,
        )
        try:
            results = run_async(play([episode], player))
        except EndOfInputError as ended:
            say(f"\n{ended}")
            results = []
    for view in views.values():
        view.explain()
    counts = failures(results)
    if counts.count:
        say(counts.describe())
    return int(any(result.reward is None for result in results))
