"""Bulk sends. Files are written first, listed in a manifest, and committed."""
