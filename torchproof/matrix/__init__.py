"""What the user asks for: matrix.yaml, checked and expanded into requests for cells."""
