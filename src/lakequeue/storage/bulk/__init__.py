"""Bulk sends: files that Spark or Arrow writes, their manifests, and the commits that add them."""
