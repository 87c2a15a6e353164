"""Claims: ``standard`` hands out available messages under a lease; ``fifo`` says which group comes next."""
