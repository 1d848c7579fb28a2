"""Proven images and their evidence → a registry, and back: tags, signatures, verify, prune."""
