"""Files, layers and wheels, read into facts. The edge of the audit."""
