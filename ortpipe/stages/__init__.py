"""The six rooms; none knows another."""
