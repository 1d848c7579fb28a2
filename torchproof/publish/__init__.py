"""Proven images and their evidence, to a registry and back: tags, signatures, verify, prune."""
