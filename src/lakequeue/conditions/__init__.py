"""SQL conditions on messages. Worker processes evaluate the conditions, without a JVM."""
