"""SkyRL-gym: an agent as a ``BaseTextEnv``. Actions are text, which SkyRL tokenizes."""

import skyrl_gym
from chat_agent import agent
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from evert.envs.as_gymnasium.env import AgentGymEnv


class AgentTextEnv(BaseTextEnv):
    """One episode of an agent. The dataset row contains the task."""

    def __init__(self, env_config=None, extras=None):
        super().__init__()
        self.task = (extras or {})["task"]
        self.env = AgentGymEnv(agent, tasks=[self.task])
        self.seen = []

    def init(self, prompt):
        """Return the agent's first messages, which replace the prompt from the dataset."""
        observation, about = self.env.reset()
        self.seen = list(observation)
        return list(observation), about

    def step(self, action):
        """Send a reply to the agent and return its new messages."""
        observation, reward, terminated, truncated, about = self.env.step(action)
        known = len(self.seen) + 1  # earlier messages plus the reply
        done = terminated or truncated
        if not done and list(observation[: known - 1]) != self.seen:
            raise NotImplementedError("The agent edited its conversation: train with a generator.")
        self.seen = list(observation)
        new = [] if done else list(observation[known:])
        return BaseTextEnvStepOutput(
            observations=new, reward=reward, done=done, metadata=about, postprocessed_action=None
        )

    def close(self):
        """Stop the agent."""
        self.env.close()


skyrl_gym.register(id="evert_agent", entry_point="skyrl_gym_env:AgentTextEnv")
