"""How the tests browse."""

from __future__ import annotations

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
PATIENCE = 60.0
"""Real seconds for a server to start or stop, and for a page to show what it should."""
