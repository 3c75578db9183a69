"""Acceptance runs on other people's files, scripts and tables: `python -m acceptance`."""
