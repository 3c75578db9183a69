"""What recording to MLflow is made of, beside the recorder itself."""
