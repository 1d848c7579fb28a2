"""The values that travel: cells, locks, results. Pure; every room may use them."""
