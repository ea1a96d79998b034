"""Aider fixes a file in a new folder, and a check scores the result.

Source: Aider-AI/aider (Apache-2.0), the unchanged program from PyPI, which must be on the PATH. Its
pinned dependencies conflict with evert's, so install it in a separate environment.

    evert train agent=fix_with_aider:agent train_tasks=broken_calculator:TASKS
"""

from broken_calculator import CHECK, FILES

import evert

# -- glue ----------------------------------------------------------------------------------------

agent = evert.agents.aider(edit=["calc.py"], files=FILES, reward=CHECK)
