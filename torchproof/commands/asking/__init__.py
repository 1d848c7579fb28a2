"""Verbs that answer a question and change nothing: plan, pick, compat, explain, schema."""
