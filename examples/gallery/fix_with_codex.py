"""Codex fixes a file in a new folder, and a check scores the result.

Source: openai/codex (Apache-2.0), the unchanged program from npm, which must be on the PATH. We use
``lean`` because Codex's full instructions don't fit in evert-tiny's context window.

    evert train agent=fix_with_codex:agent train_tasks=broken_calculator:TASKS
"""

from broken_calculator import CHECK, FILES

import evert

# -- glue ----------------------------------------------------------------------------------------

agent = evert.agents.codex(lean=True, files=FILES, reward=CHECK)
