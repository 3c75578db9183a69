"""Sweeps: the record of a sweep, its jobs, and the summary of the results."""
