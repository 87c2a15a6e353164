"""An example of a handler: replace it by your own."""


def handle(message, context):
    print(message.body)
