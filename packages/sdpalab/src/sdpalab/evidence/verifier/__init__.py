"""The verifier of bundles: ``sdpalab verify`` runs it, and each bundle carries it as one file (:mod:`.assemble`).

Its modules check a bundle's files, records and builds; the figures of a case are those of :mod:`sdpalab.judge.rule`,
which ``tests/judge/test_rule_against_torch.py`` compares with torch in float64.
"""
