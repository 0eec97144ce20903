"""The simulator: an alias of :mod:`warpsan`, whose public names it has."""

from warpsan import *  # noqa: F403
from warpsan import __all__ as __all__  # type: ignore[attr-defined]
