"""Mending damaged tables, in steps that are each one atomic change of a file or one commit under a fence."""
