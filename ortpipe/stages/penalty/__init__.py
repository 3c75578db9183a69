"""penalty: a loss model → a loss model whose loss also charges for large parameters."""
