"""Random graphs whose derivatives are held against differences: `python -m fuzz`."""
