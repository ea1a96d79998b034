"""Claude Code fixes a file in a new folder, and a check scores the result.

Source: anthropics/claude-code (Anthropic's terms), the unchanged program from npm, which must be on
the PATH. We use ``lean`` because Claude Code's full instructions don't fit in evert-tiny's context
window.

    evert train agent=fix_with_claude_code:agent train_tasks=broken_calculator:TASKS
"""

from broken_calculator import CHECK, FILES

import evert

# -- glue ----------------------------------------------------------------------------------------

agent = evert.agents.claude_code(lean=True, files=FILES, reward=CHECK)
