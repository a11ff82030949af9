"""`kvbridge bench`: figures, each defined before it is printed, always beside a plain memory copy in the same run."""
