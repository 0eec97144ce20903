"""The simulator: an alias of :mod:`warpsan` with its public names."""

from warpsan import *  # noqa: F403
from warpsan import __all__ as __all__  # type: ignore[attr-defined]
