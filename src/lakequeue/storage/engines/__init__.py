"""The two engines. Both commit under the same fence."""
