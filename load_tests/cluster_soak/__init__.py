"""Checks that a whole stack keeps its promises while its processes are killed or hang, its object store is
away or lies, its disk is full and its clock jumps: ``python -m load_tests.cluster_soak``."""
