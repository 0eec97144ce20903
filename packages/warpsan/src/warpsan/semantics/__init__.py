"""The native instruction set, one file a family. Importing this package fills the table of handlers."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
