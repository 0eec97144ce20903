"""Long runs over many kernels, cases or bugs, each of which leaves a record."""
