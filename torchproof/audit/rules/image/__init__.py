"""Rules about what an image holds and how it starts."""
