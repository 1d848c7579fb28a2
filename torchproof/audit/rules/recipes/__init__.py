"""Rules about the texts that build and launch images."""
