"""Repairs damaged tables in steps. Each step is atomic."""
