"""PyTorch integration: a model's GEMMs and attention become work for a fleet."""
