#!/usr/bin/env bash
# Trains a game with verl's own main_ppo on a CPU:
#
#     examples/verl_on_cpu/train.sh FOLDER identity [verl settings...]
#
# The data and metrics.jsonl are written to FOLDER. Set PYTHON to a Python that has verl installed.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
folder="$1" game="$2"
shift 2
mkdir -p "$folder"
folder="$(cd "$folder" && pwd)"
python="${PYTHON:-python}"

export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
export VERL_USE_EXTERNAL_MODULES=verl_cpu VERL_PLATFORM=cpu VERL_ENGINE_DEVICE=cuda
export VERL_FILE_LOGGER_PATH="$folder/metrics.jsonl"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 RAY_raylet_start_wait_time_s=120  # seconds, on a busy machine
base="$("$python" -c 'from evert.bridge.tokens.bases import base_path; print(base_path())')"
"$python" "$here/data.py" "$folder"
case "$game" in
  identity) response=32 ;;
  guess_number) response=448 ;;
esac

data=(
  data.train_files="$folder/$game.parquet" data.val_files="$folder/$game.parquet"
  data.train_batch_size=8 data.dataloader_num_workers=0
  data.max_prompt_length=96 data.max_response_length="$response"
)
rollout=(
  actor_rollout_ref.rollout.name=evert actor_rollout_ref.rollout.n=8
  actor_rollout_ref.rollout.tensor_model_parallel_size=1
  actor_rollout_ref.rollout.agent.num_workers=1
  actor_rollout_ref.rollout.agent.agent_loop_config_path="$here/loops.yaml"
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=64
)
actor=(
  actor_rollout_ref.model.path="$base"
  +actor_rollout_ref.model.override_config.attn_implementation=sdpa
  actor_rollout_ref.model.use_remove_padding=False
  actor_rollout_ref.model.enable_gradient_checkpointing=False
  actor_rollout_ref.actor.strategy=fsdp2
  actor_rollout_ref.actor.optim.lr=1e-3
  actor_rollout_ref.actor.ppo_mini_batch_size=8
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=64
  actor_rollout_ref.actor.use_torch_compile=False
  actor_rollout_ref.actor.fsdp_config.use_torch_compile=False
)
trainer=(
  algorithm.adv_estimator=grpo
  trainer.device=cpu trainer.n_gpus_per_node=1 trainer.nnodes=1
  "trainer.logger=[console,file]" trainer.default_local_dir="$folder/checkpoints"
  trainer.val_before_train=False trainer.test_freq=-1 trainer.save_freq=-1
  trainer.total_training_steps=30 trainer.total_epochs=1
  transfer_queue.backend.SimpleStorage.num_data_storage_units=1 reward.num_workers=1
  ray_kwargs.ray_init.num_cpus=16 +ray_kwargs.ray_init.num_gpus=1
  +ray_kwargs.ray_init.include_dashboard=False
  hydra.run.dir="$folder" hydra.output_subdir=null
)
exec "$python" -W ignore -m verl.trainer.main_ppo \
  "${data[@]}" "${rollout[@]}" "${actor[@]}" "${trainer[@]}" "$@"
