"""Diagnosis of a wrong output: the reason of its rejection, the place of the error, and the most likely bug."""
