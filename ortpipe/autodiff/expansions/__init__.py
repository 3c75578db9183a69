"""Expansions; `autodiff/table.py` lists the operators of each file."""
