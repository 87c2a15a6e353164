"""The two engines with the same methods, and the fence under which both commit."""
