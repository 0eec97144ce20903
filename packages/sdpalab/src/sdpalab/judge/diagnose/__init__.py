"""Diagnosis of a wrong output: why it is rejected, where it is wrong, and the most likely bug."""
