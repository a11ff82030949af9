"""The tests of the requirements: one function each, named by its id, whose docstring is the contract's sentence."""
