"""``EvertAgentLoop``: a verl agent loop that plays an episode of any agent.

verl's rollout workers create a loop for each episode. It is configured in the YAML file given by
``actor_rollout_ref.rollout.agent.agent_loop_config_path`` (see ``settings.py``).
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

    If an agent raises an error, its episode fails. verl's V1 trainers log the error and train on
    the remaining episodes. To give such episodes a reward instead, set ``on_agent_error: -1.0``.

    Args:
        *args: Arguments from verl.
        agent: Import path of the agent, 'package.module:function'.
        renderer_name: The Cookbook renderer. Defaults to the one that matches the model's name.
        branches: How to train on episodes with several token sequences: "all" creates an output for
            each sequence. "last" creates one for the last sequence, and counts the others in
            ``lineages_left_out``. Defaults to "all" if the trainer supports it, and to "last"
            otherwise.
        task: Where to find the task in a dataset row: a dotted path, or "row" for the whole
            row. Defaults to the path that ``write_dataset`` uses. If a row does not have that
            default path, its episode has no task.
        name: Name of the loop in the YAML file.
        tools: verl's tools. Unused, because agents have their own tools.
        **settings: Arguments from verl, and episode settings of ``evert train``, such as
            ``policy_names``, ``limits`` and ``on_agent_error``.

    Raises:
        UsageError: A setting is unknown, or not supported with verl (seats).
        InvalidAgentError: The agent does not exist.
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
                "rollout.enable_rollout_routing_replay is enabled, but evert's agent loop does "
                "not pass the expert routing from the servers to the trainer. Disable it, or use "
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
            # only verl's V1 trainers have a TransferQueue, which accepts several outputs
            takes_lists=bool(self.config.transfer_queue.enable),
        )

    async def run(
        self, sampling_params: dict[str, Any], **row: Any
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Play an episode for one row of the dataset, with verl's sampling parameters.

        Returns:
            A single output, or a list with one output per lineage if ``branches`` is "all".

        Raises:
            EvertError: See ``ChatAgentEnv.step`` and ``ServerPolicy``.
        """
        settings = self._settings
        task = task_of(row, settings.task)
        fixed = self.rollout_config.full_determinism  # same request ids as verl's own loops
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
        if env.turns == 0:  # nothing was sampled, so report the current weight version
            first = last = int(row.get("global_steps", 1)) - 1
        fields = {"min_global_steps": first, "max_global_steps": last}
        blank = self.tokenizer.eos_token_id or 0
        results = outputs(trajectory, settings, self._room, metrics, fields, blank)
        left_out = results[-1].extra_fields["reward_extra_info"][LEFT_OUT]
        if left_out:
            logger.warning(
                "%d lineages of an episode are not used: branches is set to 'last'.", left_out
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
