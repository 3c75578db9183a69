"""Sweeps: one record for all jobs, a status for each, and a summary of the results."""
