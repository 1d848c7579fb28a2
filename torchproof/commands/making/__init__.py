"""Verbs that make files and images: lock, generate, build."""
