"""Claims. ``standard`` hands out messages. ``fifo`` and ``tenants`` choose the next group."""
