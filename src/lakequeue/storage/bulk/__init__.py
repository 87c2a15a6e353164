"""Bulk sends: files that Spark writes, their manifests, and the commits that add them."""
