"""The claim command. ``standard`` hands out messages; ``fifo`` and ``tenants`` choose the message group."""
