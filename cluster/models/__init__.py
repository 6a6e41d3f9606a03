"""Models on this machine: by name, converted from GGUF files once, pulled from the hub; every model becomes
a directory that ``transformers`` reads. Start reading at ``resolution``."""
