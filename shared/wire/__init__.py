"""Values to messages and back: the one place where values and the protos meet. Clients and services use it;
what computes does not. Start reading at ``message``: most pairs are a ``MessageWire``, which says only what
differs. Numbers that a field may not have are refused where a value is made, unknown enum numbers here."""
