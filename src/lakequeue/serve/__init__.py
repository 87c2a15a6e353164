"""An HTTP server over a root of queues that speaks the protocol of SQS, with a console; see the README.

Needs the extra ``serve``.
"""
