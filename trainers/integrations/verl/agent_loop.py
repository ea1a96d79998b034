"""``EvertAgentLoop``: a verl agent loop that plays an episode of any agent.

verl's rollout workers create a loop for each episode, from the YAML file that
``actor_rollout_ref.rollout.agent.agent_loop_config_path`` names (``settings.py``).
"""

# pyright: reportMissingImports=false

import logging
from functools import lru_cache
from typing import Any
from uuid import uuid4

from omegaconf import OmegaConf
from tinker_cookbook.renderers import Renderer, get_renderer
from tinker_cookbook.rl.rollouts import do_single_rollout
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
)

from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.options import EnvOptions
from evert.bridge.tokens.bases import register_variant, renderer_name_of
from evert.trainers.config.arguments import UsageError
from evert.trainers.integrations.verl.dataset import task_of
from evert.trainers.integrations.verl.outputs import LEFT_OUT, outputs
from evert.trainers.integrations.verl.servers import ServerPolicy, too_long
from evert.trainers.integrations.verl.settings import ALL, Room, read_loop_settings

logger = logging.getLogger(__name__)


class EvertAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """An evert agent as a verl agent loop.

    If an agent raises an error, its episode fails: verl's V1 trainers log the error, and train on
    the other episodes (``on_agent_error: -1.0`` scores such episodes instead).

    Args:
        *args: verl's arguments.
        agent: Import path of the agent, 'package.module:function'.
        renderer_name: The Cookbook renderer; None: the renderer that fits the model's name.
        branches: How to train an episode with several token sequences. "all": each is an output;
            "last": only the last is, and the others are counted (``lineages_left_out``). None:
            "all" if the trainer supports it, else "last".
        task: Path of the task in a row of the dataset: names joined by dots, or "row" for the whole
            row. None: the path of ``write_dataset``; if a row lacks it, the agent gets no task.
        name: The loop's name in the YAML.
        tools: verl's tools; unused, since an agent has its own.
        **settings: verl's arguments, and the episode settings of ``evert train``, such as
            ``policy_names``, ``limits`` and ``on_agent_error``.

    Raises:
        UsageError: A setting is unknown, or verl does not support it (seats).
        InvalidAgentError: There is no such agent.
    """

    def __init__(
        self,
        *args: Any,
        agent: str,
        renderer_name: str | None = None,
        branches: str | None = None,
        task: str | None = None,
        name: str = "evert",
        tools: Any = None,
        **settings: Any,
    ) -> None:
        verl_options = {key: settings.pop(key) for key in _OF_VERL & settings.keys()}
        super().__init__(*args, **verl_options)
        if self.rollout_config.enable_rollout_routing_replay:
            raise UsageError(
                "rollout.enable_rollout_routing_replay is on, but evert's agent loop does not "
                "pass the expert routing from the servers to the trainer. Turn it off, or use "
                "rollout_correction."
            )
        self._room = Room.of(self.rollout_config)
        model = str(self.config.actor_rollout_ref.model.path)
        self._renderer = _renderer(renderer_name, model, self.tokenizer)
        self._settings = read_loop_settings(
            OmegaConf.to_container(OmegaConf.create(settings), resolve=True),
            agent=agent,
            branches=branches,
            task=task,
            room=self._room,
            # Only verl's V1 trainers have a TransferQueue, which accepts several outputs.
            takes_lists=bool(self.config.transfer_queue.enable),
        )

    async def run(
        self, sampling_params: dict[str, Any], **row: Any
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Play the episode of a dataset's row, with verl's sampling parameters.

        Returns:
            One output; with ``branches`` "all", a list with an output per lineage.

        Raises:
            EvertError: As for ``ChatAgentEnv.step`` and ``ServerPolicy``.
        """
        settings = self._settings
        task = task_of(row, settings.task)
        fixed = self.rollout_config.full_determinism  # use the request ids of verl's own loops
        name = f"det-{int(row.get('priority', 0))}" if fixed else uuid4().hex
        policy = ServerPolicy(
            self.server_manager, name, sampling_params, self._room, self.tokenizer
        )
        options: EnvOptions = {**settings.options, "renderer": self._renderer}
        env = ChatAgentEnv(settings.agent, task, **options)
        try:
            trajectory = await do_single_rollout(policy, env)
        finally:
            await env.close()
        [*_, end] = trajectory.transitions
        if env.turns == 0 and "context_overflow" in end.logs:
            raise too_long(str(end.logs["context_overflow"]), self._room)
        metrics = AgentLoopMetrics(
            generate_sequences=policy.seconds, num_preempted=policy.preempted
        )
        first, last = policy.versions
        if env.turns == 0:  # report the weights that would have sampled
            first = last = int(row.get("global_steps", 1)) - 1
        fields = {"min_global_steps": first, "max_global_steps": last}
        blank = self.tokenizer.eos_token_id or 0
        results = outputs(trajectory, settings, self._room, metrics, fields, blank)
        left_out = results[-1].extra_fields["reward_extra_info"][LEFT_OUT]
        if left_out:
            logger.warning(
                "%d lineages of an episode are not trained on: branches is 'last'.", left_out
            )
        return results if settings.branches == ALL else results[-1]


_OF_VERL = {
    "trainer_config",
    "server_manager",
    "tokenizer",
    "processor",
    "dataset_cls",
    "data_config",
    "hf_model_type",
}


@lru_cache(maxsize=8)
def _renderer(name: str | None, model: str, tokenizer: Any) -> Renderer:
    name = name or renderer_name_of(model)
    register_variant(name)
    return get_renderer(name, tokenizer, model_name=model)
