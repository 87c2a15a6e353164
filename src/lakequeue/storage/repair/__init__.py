"""Repairs damaged tables in steps. Each is an atomic change of a file, or a commit under a fence."""
