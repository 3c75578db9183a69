"""Which initializers are trained: who reads them, and what they hold."""
