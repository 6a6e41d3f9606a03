"""Decides who may come in: how often, how many at once, while how much memory is taken, and in which order
those who must wait. Start reading at ``entrance``, then ``turns``."""
