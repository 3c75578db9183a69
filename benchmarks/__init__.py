"""Side-by-side runs; never timed tests."""
