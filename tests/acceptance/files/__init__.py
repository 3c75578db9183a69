"""Files from PyPI packages, each fine-tuned for 20 steps: what trains, what it takes, and what is refused."""
