"""The subcommands, one per file. Each takes its options, calls a stage, prints, and returns its exit code."""
