"""Claude Code fixes a file in a new folder; a check scores it.

Source: anthropics/claude-code (Anthropic's terms); unchanged, the program from npm, found on the
PATH. It is ``lean``, since its own instructions do not fit into the context of evert-tiny.

    evert train agent=fix_with_claude_code:agent train_tasks=broken_calculator:TASKS
"""

from broken_calculator import CHECK, FILES

import evert

# -- glue ----------------------------------------------------------------------------------------

agent = evert.agents.claude_code(lean=True, files=FILES, reward=CHECK)
