"""Reads documents in processes of their own, which may take no more of the machine than they are told: a
document that somebody made to stop the service stops its own reading. Start reading at ``processes``."""
