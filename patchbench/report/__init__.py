"""Consumers of a `Result` that show it to a person."""
