"""The two engines. Commits of both engines use one fence."""
