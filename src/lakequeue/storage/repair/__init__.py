"""Repairs damaged tables in steps, each of which is atomic."""
