"""An HTTP server for the queues of a root, with the SQS protocol and a console. Needs the extra ``serve``."""
