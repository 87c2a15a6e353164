"""The only room that knows Delta: layout, the two engines, fences, housekeeping."""
