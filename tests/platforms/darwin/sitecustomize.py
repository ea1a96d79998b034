"""Imported by Python at startup. See ``simulation.py``."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from simulation import simulate

simulate("darwin")
