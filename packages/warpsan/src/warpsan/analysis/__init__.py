"""Static analysis of a kernel: blocks, loops, polling, groups of mma, undefined registers."""
