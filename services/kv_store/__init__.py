"""kv_store: keeps chunk KV and the documents made of it.

Owns files: sealed chunk files (``shared.kv_format``) in the tiers of every Ray node and in the object store, and one manifest per
document, kept by the home node. It never looks into KV, knows no model and imports no torch.

    front (Serve ingress) ──▶ agent of every node ──▶ memory ─▶ disk ─▶ object store, other nodes
      ``cluster_store``         ``agent``               ``node_tiers`` of ``local_tier``, ``fetches``, ``uploader``

- An **agent** owns its node's tiers. A reader on that node is told a path; other agents fetch from it by Arrow Flight (``flight``).
- The agent of the **home** node (the Ray head) also keeps the manifests (``documents``), and with them the reference counts; so
  only it deletes, collects garbage, pins and counts quotas (``upkeep``, ``housekeeping``).
- The **front** finds the nodes, keeps their agents running and sends every call to the right one.

Durable means: in the object store; without one, written to ``staging/``, fsynced, renamed, directory fsynced. A crash at any point
leaves what was acknowledged.
Start reading at ``blobs``, what every tier is made of, then ``local_tier``, ``node_tiers``, ``documents``, ``agent``,
``cluster_store``; ``handlers`` and ``app`` put them on the wire. ``disk``, ``nodes`` and ``blobs`` are the seams where tests put
full disks, silent nodes and servers that lie.
"""
