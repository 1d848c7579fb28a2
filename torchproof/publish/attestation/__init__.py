"""Signed statements about an image: how they are made, attached to it, and verified."""
