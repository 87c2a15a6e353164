"""Conditions on messages in SQL, judged in worker processes without a JVM."""
