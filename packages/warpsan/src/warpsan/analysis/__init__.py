"""Facts about a program before it runs: blocks, loops, polling, groups of mma, undefined registers."""
