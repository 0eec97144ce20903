"""``python -m warpsan``."""

import sys

from warpsan.cli import main

sys.exit(main())
