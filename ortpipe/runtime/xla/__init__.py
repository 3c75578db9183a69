"""The second engine: a graph's standard operators, traced by JAX and compiled by XLA into one function."""
