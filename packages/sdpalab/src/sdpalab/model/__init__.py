"""Modelled time of a launch plan on a GPU, from its machine code and the simulator's counts.

:mod:`~sdpalab.model.counted` builds and counts a plan, :mod:`~sdpalab.model.modelled` models its time.
"""
