"""An HTTP server for a root: SQS protocol and console. Needs the extra ``serve``."""
