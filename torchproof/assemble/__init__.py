"""assemble."""
