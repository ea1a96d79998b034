"""The identity agent under TRL's GRPOTrainer, on the CPU: 30 steps of 64 episodes in half a minute.

pip install "evert[trl]"
python examples/trl_on_cpu/identity.py --steps 30 --out runs/trl-identity
"""

import argparse

import torch
from trl import GRPOConfig, GRPOTrainer

from evert.bridge.tokens.bases import base_path
from evert.trl import Rollouts

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--learning-rate", type=float, default=1e-3)
parser.add_argument("--out", default="runs/trl-identity")
options = parser.parse_args()

torch.set_num_threads(1)  # the model is tiny
rollouts = Rollouts("evert.envs.identity:identity_agent", "evert.envs.identity:TRAIN_TASKS")
config = GRPOConfig(
    output_dir=options.out,
    max_steps=options.steps,
    seed=options.seed,
    per_device_train_batch_size=64,  # episodes a step
    num_generations=8,  # episodes a task
    max_completion_length=16,  # tokens after the prompt
    learning_rate=options.learning_rate,
    lr_scheduler_type="constant",
    scale_rewards="none",
    gradient_checkpointing=False,
    use_cpu=True,
    bf16=False,
    logging_steps=1,
    report_to="none",
    save_strategy="no",
)
trainer = GRPOTrainer(
    model=str(base_path("evert-tiny")),
    args=config,
    train_dataset=rollouts.dataset,
    rollout_func=rollouts,
    reward_funcs=rollouts.reward,
)
trainer.train()
trainer.save_state()  # trainer_state.json: the log, with the reward of each step
