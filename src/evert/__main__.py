"""``python -m evert`` runs the ``evert`` command."""

import sys

from evert.trainers.cli import main

if __name__ == "__main__":
    sys.exit(main())
