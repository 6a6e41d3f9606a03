"""Works out how large a system must be: bytes of KV, replicas, what storing costs and what it saves."""
