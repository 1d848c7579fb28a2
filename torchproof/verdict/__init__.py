"""Evidence in, verdict out. Pure."""
