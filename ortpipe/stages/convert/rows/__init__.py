"""The axis and the number of rows of a file's inputs and outputs."""
