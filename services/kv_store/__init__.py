"""kv_store: keeps chunk KV and the documents made of it.

Owns chunk files (``shared.kv_format``) in the tiers of every Ray node and in an object store, and one
manifest per document, and items that front doors keep beside documents. It never looks into KV, knows no
model and imports no torch.

    KvStore:    outside, gateway, ingestion ──▶ front (Serve ingress) ──▶ agents
    NodeStore:  generator, selector ──▶ agent of their own node ◀──▶ agents of the others
    an agent:   shared memory ─ disk ─ object store

- An **agent** owns its node's tiers. A reader on that node is told a path, also while the chunk is still
  arriving.
- With an **object store**, that is the truth: what is stored is there when it is acknowledged (KV that was
  recomputed on the way to an answer gets there later), and nodes have copies. Without one, the disk of the
  node that stored a chunk is the truth.
- Nodes fetch from each other by Arrow Flight.
- The agent of the **home** node (the Ray head) also keeps the manifests, and with them the reference counts;
  so only it deletes.
- The **front** finds the nodes, keeps their agents running and sends every call to the right one.

Durable on a disk means: written to ``staging/``, fsynced, renamed, directory fsynced. A crash at any point
leaves what was acknowledged. Whatever is wrong with a chunk's KV makes it absent, for its user can compute it
again.

Where to read what:

- ``node``: one node's store. ``builder`` puts it together, ``agent`` answers, ``chunks`` is its tiers as
  one, ``home`` keeps the documents; ``cluster_store`` is the front's view of all nodes.
- ``blobs`` is the one interface of everything that keeps bytes, ``s3`` the object store, ``tiers`` a node's
  own directories, ``fetching`` how chunks come in, ``documents`` manifests and pins, ``upkeep`` scrubbing and
  garbage.
- ``shared.kv_stores`` has both interfaces; ``handlers`` and ``node.handlers`` put them on the wire, ``app``
  on Ray.
"""
