"""One candidate with several versions of torch: did the kernel change, or the reference?

:func:`~sdpalab.torch_matrix.run.run_matrix` does it all; the environments are made in
:mod:`~sdpalab.torch_matrix.environments`, what runs inside them is :mod:`~sdpalab.torch_matrix.runner`, and
the rules are in :mod:`~sdpalab.torch_matrix.compare` and :mod:`~sdpalab.torch_matrix.conclusion`.
"""
