"""The verifier of bundles, in parts: ``sdpalab verify`` runs them, and each bundle carries them as one file.

The parts import the standard library, NumPy and each other. Only :mod:`.facts` takes what it says from the lab, and
that is written out as values in the file (:mod:`.assemble`).
"""
