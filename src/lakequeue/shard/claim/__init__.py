"""Claims: ``standard`` hands out available messages under a lease; ``fifo`` and ``tenants`` choose the next
group.
"""
