"""Reads tables that may be damaged. Writes nothing."""
