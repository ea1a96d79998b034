"""Writes ``identity.parquet`` and ``guess_number.parquet`` to the folder passed as an argument."""

import sys
from pathlib import Path

from evert.envs import guess_number, identity
from evert.verl import write_dataset

folder = Path(sys.argv[1])
write_dataset(folder / "identity.parquet", identity.TRAIN_TASKS, agent_name="identity")
write_dataset(folder / "guess_number.parquet", guess_number.TRAIN_TASKS, agent_name="guess_number")
