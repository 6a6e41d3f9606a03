"""Knows who calls: principals, what they may do, and how services tell each other of them.

``principal`` is the value that every request's context carries. ``signing`` gives it a form that travels
between the services of one installation and that nobody else can make.
"""
