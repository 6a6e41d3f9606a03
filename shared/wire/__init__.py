"""Values to messages and back, in pairs (``…_to_pb`` and ``…_of``): the one place where ``shared.generation``
and the protos meet. Clients and services use it; what computes does not. Numbers that a field may not have
are refused where a value is made, unknown enum numbers here."""
