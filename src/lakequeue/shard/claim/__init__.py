"""Claims: ``standard`` hands out messages under a lease; ``fifo`` and ``tenants`` choose the next group."""
