"""kv_store: keeps chunk KV and the documents made of it.

Owns chunk files (``shared.kv_format``) in the tiers of every Ray node and in an object store, and one
manifest per document. It never looks into KV, knows no model and imports no torch.

    front (Serve ingress) ──▶ agent of every node ──▶ shared memory ─ disk ─ object store
      ``cluster_store``         ``agent``               ``node_tiers``

- An **agent** owns its node's tiers. A reader on that node is told a path, also while the chunk is still
  arriving.
- With an **object store**, that is the truth: what is stored is there when it is acknowledged (KV that was
  recomputed on the way to an answer gets there later), and nodes have copies. Without one, the disk of the
  node that stored a chunk is the truth.
- Nodes fetch from each other by Arrow Flight (``flight``, ``sources``).
- The agent of the **home** node (the Ray head) also keeps the manifests, and with them the reference counts;
  so only it deletes.
- The **front** finds the nodes, keeps their agents running and sends every call to the right one.

Durable on a disk means: written to ``staging/``, fsynced, renamed, directory fsynced. A crash at any point
leaves what was acknowledged. Whatever is wrong with a chunk's KV makes it absent, for its user can compute it
again.

Where to read what:

- ``blobs`` is the one interface of everything that keeps bytes; ``directory_blobs`` and ``object_blobs``
  implement it.
- ``local_tier`` (with ``tier_files``, ``staging``, ``eviction``, ``leases``) is one directory with a
  capacity.
- ``node_tiers`` puts a node's tiers together; ``fetches`` and ``fetch`` bring chunks in, ``promotion`` moves
  them to memory, ``writes`` and ``uploader`` make them durable.
- ``documents`` keeps manifests; ``upkeep`` scrubs, collects garbage, pins and counts.
- ``handlers`` and ``app`` put it all on the wire. ``disk``, ``blobs`` and ``nodes`` are the seams where tests
  put full disks, broken servers and silent nodes.
"""
