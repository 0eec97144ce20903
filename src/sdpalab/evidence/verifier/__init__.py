"""The verifier of bundles, in parts: ``sdpalab verify`` runs them, and each bundle carries them as one file.

The parts import the standard library, NumPy and each other. Only :mod:`.facts` imports from the lab; the file has its
values instead (:mod:`.assemble`).
"""
