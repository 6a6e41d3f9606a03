"""After `helm upgrade`: gives the running Ray clusters of a RayService the numbers of pods that its values
say.

KubeRay itself takes such a change for the autoscaler's business and does nothing. Arguments: RayService,
group=replicas ...
"""

import json
import os
import ssl
import sys
import urllib.request

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def call(method, path, body=None):
    with open(f"{ACCOUNT}/token") as file:
        headers = {"Authorization": f"Bearer {file.read()}", "Content-Type": "application/json-patch+json"}
    data = None if body is None else json.dumps(body).encode()
    host = f"{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    request = urllib.request.Request(f"https://{host}{path}", data, headers, method=method)
    with urllib.request.urlopen(
        request, timeout=20, context=ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
    ) as answer:
        return json.load(answer)


def changes(groups, wanted):
    """JSON patch operations; they fail when somebody has reordered the groups in between."""
    for i, group in enumerate(groups):
        path, name = f"/spec/workerGroupSpecs/{i}", group["groupName"]
        new = (
            dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), wanted[name]) if name in wanted else {}
        )
        if any(group.get(key) != value for key, value in new.items()):
            yield {"op": "test", "path": f"{path}/groupName", "value": name}
            yield from ({"op": "add", "path": f"{path}/{key}", "value": value} for key, value in new.items())


def main(service, *groups):
    with open(f"{ACCOUNT}/namespace") as file:
        clusters = f"/apis/ray.io/v1/namespaces/{file.read()}/rayclusters"
    wanted = {name: int(replicas) for name, _, replicas in (group.partition("=") for group in groups)}
    for cluster in call("GET", f"{clusters}?labelSelector=ray.io/originated-from-cr-name%3D{service}")[
        "items"
    ]:
        name = cluster["metadata"]["name"]
        patch = list(changes(cluster["spec"]["workerGroupSpecs"], wanted))
        print(f"{name}: {patch or 'has what it should have'}", flush=True)
        if patch:
            call("PATCH", f"{clusters}/{name}", patch)


if __name__ == "__main__":
    main(*sys.argv[1:])
