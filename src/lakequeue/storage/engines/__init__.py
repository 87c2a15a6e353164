"""The two engines, and the fence that guards the commits of both engines."""
