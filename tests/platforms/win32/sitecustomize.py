"""Python imports this at its start: see ``simulation.py``."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from simulation import simulate

simulate("win32")
