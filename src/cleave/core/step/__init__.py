"""A whole training step: what it computes, how each family of plans would run it, which is best."""
