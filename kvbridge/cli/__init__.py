"""The command `kvbridge`."""
