"""Examples may take as long as they need: a machine that does other things at the same time may be slow."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
