"""Changes of a converted model by the config: a new head, initial weights, fake quantization."""
