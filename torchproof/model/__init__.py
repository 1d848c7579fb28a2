"""The values that rooms pass to each other: cells, locks, results. Pure."""
