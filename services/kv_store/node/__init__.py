"""One node's part of the store, and the front that asks all nodes."""
