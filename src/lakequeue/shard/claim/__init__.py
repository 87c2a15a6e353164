"""Claims: `standard` hands out available messages under a lease; `fifo` says which message group comes next."""
