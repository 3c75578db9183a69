"""The second engine: the standard operators of a graph, traced by JAX and compiled by XLA into one function."""
