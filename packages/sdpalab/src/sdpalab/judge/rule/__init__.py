"""The rule: the float64 reference, the error limits, the exact elements, and the emulation of declared numerics."""
