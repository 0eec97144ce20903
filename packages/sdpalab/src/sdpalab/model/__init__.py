"""How long a launch plan would take on a GPU, by a model: from its machine code and from what the simulator counted.

:mod:`~sdpalab.model.counted` builds and counts a plan, :mod:`~sdpalab.model.modelled` says what its time would be.
"""
