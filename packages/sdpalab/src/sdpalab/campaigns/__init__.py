"""Mutation tests that leave a record: of the synchronisation of a kernel, and of the judge."""
