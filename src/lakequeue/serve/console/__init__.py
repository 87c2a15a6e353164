"""The console: a page in the browser, and its JSON API."""
