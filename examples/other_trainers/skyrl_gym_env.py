"""SkyRL-gym: an agent as a ``BaseTextEnv``. Actions are texts; SkyRL makes the tokens."""

import skyrl_gym
from chat_agent import agent
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from evert.envs.as_gymnasium.env import AgentGymEnv


class AgentTextEnv(BaseTextEnv):
    """One episode of an agent; the task is in the row of the dataset."""

    def __init__(self, env_config=None, extras=None):
        super().__init__()
        self.task = (extras or {})["task"]
        self.env = AgentGymEnv(agent, tasks=[self.task])
        self.seen = []

    def init(self, prompt):
        """Return the agent's first messages, which replace the dataset's prompt."""
        observation, about = self.env.reset()
        self.seen = list(observation)
        return list(observation), about

    def step(self, action):
        """Give the agent a reply; return its new messages."""
        observation, reward, terminated, truncated, about = self.env.step(action)
        known = len(self.seen) + 1  # the messages before, and the reply
        done = terminated or truncated
        if not done and list(observation[: known - 1]) != self.seen:
            raise NotImplementedError("The agent changed its conversation: train with a generator.")
        self.seen = list(observation)
        new = [] if done else list(observation[known:])
        return BaseTextEnvStepOutput(
            observations=new, reward=reward, done=done, metadata=about, postprocessed_action=None
        )

    def close(self):
        """End the agent."""
        self.env.close()


skyrl_gym.register(id="evert_agent", entry_point="skyrl_gym_env:AgentTextEnv")
