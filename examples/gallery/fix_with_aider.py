"""Aider fixes a file, in a folder of its own, scored by a check.

Source: Aider-AI/aider (Apache-2.0); unchanged, the program from PyPI, found on the PATH. Its pins
conflict with evert's: it has an environment of its own.

    evert train agent=fix_with_aider:agent train_tasks=broken_calculator:TASKS
"""

from broken_calculator import CHECK, FILES

import evert

# -- glue ----------------------------------------------------------------------------------------

agent = evert.agents.aider(edit=["calc.py"], files=FILES, reward=CHECK)
