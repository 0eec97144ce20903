"""The store of records on GPUs, lookup in it, and the choice of a kernel by it: certificates, times, tuned defaults."""
