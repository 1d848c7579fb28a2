"""Which image runs on a driver and a GPU, ranked, and which wheels link with a torch."""
