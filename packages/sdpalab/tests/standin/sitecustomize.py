"""Imported by Python as it starts, in a process whose PYTHONPATH has this folder: :mod:`standin_torch`."""

import standin_torch

standin_torch.install()
