"""Opponents: seats of an agent that frozen models play.

A seat that a model is named for has no Env, and nothing that it says is trained on. A league draws
among the checkpoints that came before, evenly, by the step and the seed. All episodes of a group
meet the same opponent.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.kit import ask, policy_of
from tinker_cookbook.rl.rollouts import do_group_rollout

from evert import AgentClient, AgentDataset, ChatAgentGroupBuilder, TinkerModel
from evert.bridge.errors import InvalidDatasetError
from evert.bridge.groups.opponents import Against, League
from evert.bridge.tokens.renderer import prompt_renderer

SEATS = ("player", "judge")


async def debate(client: AgentClient, task: str) -> dict[str, float]:
    said = task
    for seat in SEATS:
        asked = client.seat(seat)
        said = await ask(asked, said)
        asked.reward(0.5)
        asked.metric("asked", 1.0)
    return {"player": float(said == "no"), "judge": 0.0}


def no(messages: Any) -> str:
    return "no"


async def test_a_seat_that_a_model_is_named_for_has_no_env() -> None:
    heard: list[Any] = []

    def judge(messages: Any) -> str:
        heard.append([dict(message) for message in messages])
        return "no"

    for model in (judge, policy_of("no", "no")):
        models: Any = {"evert/judge": model}
        builder = ChatAgentGroupBuilder(debate, "a", 2, seats=["player"], models=models)
        group = await do_group_rollout(builder, policy_of("yes", "yes"))

        decode = prompt_renderer(None).decode
        said = [[decode(t.ac.tokens) for t in each.transitions] for each in group.trajectories_G]
        assert said == [["yes<|im_end|>"]] * 2
        assert [metrics["seat/player/reward"] for metrics in group.metrics_G] == [1.5, 1.5]
        assert [metrics["seat/player/asked"] for metrics in group.metrics_G] == [1.0, 1.0]
    assert heard == [[{"role": "user", "content": "yes"}]] * 2


def test_a_seat_is_either_trained_or_frozen_and_one_is_trained() -> None:
    with pytest.raises(InvalidDatasetError, match="beside judge, which frozen models play"):
        ChatAgentGroupBuilder(debate, "a", seats=["judge"], models={"evert/judge": no})
    # Without seats it is a plain agent, which has none to ask for.
    assert ChatAgentGroupBuilder(debate, "a", models={"evert/judge": no}).seats == ()


def league(folder: Path, share: float = 0.5) -> League:
    records = [
        {"name": f"{batch:06}", "batch": batch, "sampler_path": f"tinker://x/{batch}"}
        for batch in (10, 20, 30)
    ]
    records.insert(1, {"name": "rolling", "batch": 11, "rolling": True, "state_path": "tinker://s"})
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "checkpoints.jsonl").write_text(lines)
    return League(str(folder), share, max_tokens=2)


def test_a_league_draws_evenly_among_the_checkpoints_that_came_before(tmp_path: Path) -> None:
    assert League(str(tmp_path), 1.0)(SEATS, 0, 0, 7) == {}
    assert league(tmp_path, 1.0)(SEATS, 10, 0, 7) == {}, "before the first the policy plays all"
    whole = league(tmp_path)
    drawn = [whole(SEATS, 25, 0, seed) for seed in range(400)]

    met = Counter((seat, model.model_path) for each in drawn for seat, model in each.items())  # type: ignore[union-attr]
    assert set(met) == {(s, f"tinker://x/{n}") for s in SEATS for n in (10, 20)}
    assert 160 < sum(met.values()) < 240
    assert min(met.values()) > 30
    one = next(model for each in drawn for model in each.values())
    assert isinstance(one, TinkerModel)
    assert (one.max_tokens, one.temperature) == (2, 1.0)

    checkpoints = tmp_path / "checkpoints.jsonl"
    checkpoints.write_text("".join(checkpoints.read_text().splitlines(keepends=True)[:-1]))
    again = [whole(SEATS, 25, 0, seed) for seed in range(50)]
    assert again == drawn[:50], "whatever was saved later, a resumed run draws the same"


async def test_all_episodes_of_a_group_meet_one_opponent_and_seats_take_turns() -> None:
    sizes: Any = {"batch_size": 2, "group_size": 3, "shuffle": False}
    opponents = Against(lambda seed: no)
    dataset = AgentDataset(debate, ["a", "b"], seats=SEATS, opponents=opponents, **sizes)

    first, second = dataset.get_batch(0)

    assert (first.seats, second.seats) == (("player",), ("judge",))
    assert set(first.options.get("models") or {}) == {"evert/judge"}
    group = await do_group_rollout(first, policy_of(lambda prompt: "yes"))
    assert [metrics["seat/player/reward"] for metrics in group.metrics_G] == [1.5] * 3
    assert dataset.group(0).seats == SEATS
