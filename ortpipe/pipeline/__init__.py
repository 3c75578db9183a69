"""The corridor: plans, runs and events; knows no stage by name."""
