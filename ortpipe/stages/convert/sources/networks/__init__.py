"""Networks by config, and the columns of a table that they read."""
