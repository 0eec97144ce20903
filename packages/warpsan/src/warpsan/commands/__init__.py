"""The subcommands of ``warpsan``."""
