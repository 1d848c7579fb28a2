"""Which image fits: ranked tags for a driver and a GPU, and wheels that link with a torch."""
