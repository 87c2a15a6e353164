"""The claim of messages. ``standard`` hands out messages; ``fifo`` and ``tenants`` choose the next message
group.
"""
