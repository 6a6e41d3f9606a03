"""Named, immutable byte strings, and the directories and disks that keep them."""
