"""``python -m sdpalab``: the command line without its console script."""

import sys

from sdpalab.cli import main

sys.exit(main())
