"""Probe scripts, run in what was built or in the present Python → results."""
