"""Networks by config beside scikit-learn's HistGradientBoosting, on real tables."""
