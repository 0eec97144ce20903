"""The rule: the float64 oracle, the limits of an error, the exact probes, and the emulation of declared numerics."""
