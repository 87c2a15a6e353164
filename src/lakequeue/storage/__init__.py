"""The only layer that knows Delta: layout, the two engines, fences, housekeeping."""
