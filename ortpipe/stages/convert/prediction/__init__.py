"""The choice of the output that is the prediction, and its meaning."""
