"""One room per service, each with the same four doors: ``__init__`` (what it owns), ``app`` (its Ray Serve
application, the only module that imports ray), ``handlers`` (proto in, domain call, proto out) and
``config``. Rooms never import each other."""

from shared.openmp import spin_briefly

spin_briefly()
