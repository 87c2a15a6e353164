"""Bulk sends. Files are written first, then listed in a manifest, and then committed."""
