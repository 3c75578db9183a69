"""Models, weights and adapters in files, and weights back into the file that they came from."""
