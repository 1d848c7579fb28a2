"""What is asked for: matrix.yaml, checked and expanded into requests for cells."""
