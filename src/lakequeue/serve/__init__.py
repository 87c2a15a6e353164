"""An HTTP server with the SQS protocol and a console for the queues of a root. Needs the extra ``serve``."""
