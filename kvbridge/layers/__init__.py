"""Layers: what can be put around any pipe, buffer or transport. A layer knows no backend."""
