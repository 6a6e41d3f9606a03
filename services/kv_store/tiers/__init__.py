"""The tiers of a node: which chunks lie in memory and on disk, and which of them go when there is no room."""
