"""Aider fixes a file in a new folder; a check scores it.

Source: Aider-AI/aider (Apache-2.0); unchanged, the program from PyPI, found on the PATH. Its pins
conflict with evert's, so it has a separate environment.

    evert train agent=fix_with_aider:agent train_tasks=broken_calculator:TASKS
"""

from broken_calculator import CHECK, FILES

import evert

# -- glue ----------------------------------------------------------------------------------------

agent = evert.agents.aider(edit=["calc.py"], files=FILES, reward=CHECK)
