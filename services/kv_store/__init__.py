"""kv_store: keeps chunk KV and the documents made of it.

Owns files: sealed chunk files (``shared.kv_format``) on every Ray node, and one manifest per document on the home node. It never
looks into KV, knows no model and imports no torch.

    front (Serve ingress) ──▶ agent of every node ──▶ its directory
      ``cluster_store``         ``agent``               ``chunk_files``, ``documents``

- An **agent** owns its node's directory. A reader on that node is told a path; other agents copy from it over gRPC.
- The agent of the **home** node (the Ray head) also keeps the manifests, and with them the reference counts; so only it deletes.
- The **front** finds the nodes, keeps their agents running and sends every call to the right one.

Durable means: written to ``staging/``, fsynced, renamed, directory fsynced. A crash at any point leaves what was acknowledged.
Start reading at ``chunk_files``, then ``documents``, ``agent``, ``cluster_store``; ``handlers`` and ``app`` put them on the wire.
``disk`` and ``nodes`` are the seams where tests put full disks and silent nodes.
"""
