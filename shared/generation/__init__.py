"""Questions to a generation and what is told of it: the values that engine, services, clients and command
line share. Torch-free."""
