"""A multi-turn environment for verifiers 0.4, with the game engine as its user."""

import re

import verifiers.v1 as vf


class Number(vf.TaskData):
    number: int


class Guess(vf.Task[Number]):
    @vf.metric
    async def words(self, trace):
        return float(sum(len(m.content.split()) for m in trace.messages if m.role == "assistant"))


class Config(vf.TasksetConfig):
    split: str = "train"
    count: int = 40


class Guesses(vf.Taskset[Guess, Config]):
    def load(self):
        begin = 1000 if self.config.split == "test" else 0
        for number in range(begin, begin + self.config.count):
            prompt = f"Game {number}: I think of 1, 2 or 3. Guess."
            yield Guess(Number(prompt=prompt, number=number % 3 + 1), self.config.task)


class GuessEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig(max_turns=2)


class GuessEnv(vf.Env[GuessEnvConfig]):
    async def run(self, task, agents):
        guesses, guess = 0, None
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                guesses += 1
                guess = int(re.findall(r"\d", f"0{segment.last_reply}")[-1])
                if guess == task.data.number:
                    break
                hint = "Too low." if guess < task.data.number else "Too high."
                segment = await interaction.turn(hint)
        interaction.trace.record_reward("found", float(guess == task.data.number) / guesses)


__all__ = ["GuessEnv", "Guesses"]
