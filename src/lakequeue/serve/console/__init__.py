"""The console: a page in the browser, and the JSON API that it works with."""
