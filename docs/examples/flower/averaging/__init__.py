"""A Flower app that trains a bundle of ortpipe."""
