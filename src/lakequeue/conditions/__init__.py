"""SQL conditions on messages. Worker processes evaluate them, without a JVM."""
