"""The console: a page for the browser, and the JSON API of the page."""
