"""Plans, runs, the store and events; independent of the concrete stages."""
