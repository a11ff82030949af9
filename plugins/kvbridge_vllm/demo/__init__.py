"""What the demos have in common: a small real language model, and servers that are watched while they start."""
