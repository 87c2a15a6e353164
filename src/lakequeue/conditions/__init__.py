"""SQL conditions on messages, evaluated in worker processes without a JVM."""
