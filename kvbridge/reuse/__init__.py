"""What is kept for reuse: the names of blocks, and the catalog that says which of them are where."""
