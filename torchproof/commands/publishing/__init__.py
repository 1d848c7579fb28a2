"""Verbs that deal with a registry: publish, verify, prune."""
