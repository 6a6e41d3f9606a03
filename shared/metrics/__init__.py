"""Counts and times what a process does, and shows it to Prometheus.

``table`` lists every metric; who measures says so there first. ``recorder`` holds the values of one process,
``node`` gathers those of all processes of a machine. Start reading at ``table``.
"""
