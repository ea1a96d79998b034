"""Train the identity agent with TRL's GRPOTrainer on a CPU (30 steps take half a minute).

pip install "evert[trl]"
python examples/trl_on_cpu/identity.py --steps 30 --out runs/trl-identity
"""

import argparse

import torch
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

from evert.bridge.tokens.bases import BASES, base_path
from evert.trl import Rollouts

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--learning-rate", type=float, default=1e-3)
parser.add_argument("--model", default="evert-tiny", help="a bundled base model or a model folder")
parser.add_argument("--episodes", type=int, default=64, help="episodes per step")
parser.add_argument("--passes", type=int, default=1, help="split each step into this many batches")
parser.add_argument("--max-tokens", type=int, default=16, help="max tokens after the prompt")
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--out", default="runs/trl-identity")
options = parser.parse_args()

is_tiny = options.model in BASES
torch.set_num_threads(options.threads)
rollouts = Rollouts("evert.envs.identity:identity_agent", "evert.envs.identity:TRAIN_TASKS")
config = GRPOConfig(
    output_dir=options.out,
    max_steps=options.steps,
    seed=options.seed,
    per_device_train_batch_size=options.episodes // options.passes,
    gradient_accumulation_steps=options.passes,
    num_generations=8,  # episodes per task
    max_completion_length=options.max_tokens,
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
    model=str(base_path(options.model)) if is_tiny else options.model,
    args=config,
    train_dataset=rollouts.dataset,
    rollout_func=rollouts,
    reward_funcs=rollouts.reward,
    peft_config=None if is_tiny else LoraConfig(r=32, lora_alpha=32, target_modules="all-linear"),
)
trainer.train()
trainer.save_state()  # trainer_state.json contains the log with the reward at each step
