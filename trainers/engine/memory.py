"""How much memory there is, and how many tokens a training pass may have in it.

A pass keeps what its backward pass needs: about ``activation_bytes`` a token. Where that is more
than there is room for, each layer keeps its input alone and is computed again (gradient
checkpointing), and the batch is cut into smaller ones. The gradient is the same sum either way.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from evert.trainers.engine.cores import lanes
