"""LookupBuffers that the core provides."""
