"""TLS between Ray's own processes: a certificate per pod, by an authority that init containers alone have."""

from __future__ import annotations

import base64
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
from cryptography import x509

from tests.contract.helm.test_profiles import ray_templates
from tests.helm import KUBERNETES, Helm, only, profile

ON: dict[str, Any] = {"rayTls.enabled": True}


def test_every_ray_pod_gets_a_certificate_for_its_address(helm: Helm, tmp_path: Path) -> None:
    objects = helm.render(profile("multi-gpu-ha"), **ON)
    secret = only(objects, "Secret", "-ray-authority")
    for folder in (authority := tmp_path / "authority", made := tmp_path / "made"):
        folder.mkdir()
    for name, data in secret["data"].items():
        (authority / name).write_bytes(base64.b64decode(data))
    for component, template in ray_templates(objects).items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": component}, "spec": template["spec"]}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)
        (init,) = template["spec"]["initContainers"]
        (container,) = template["spec"]["containers"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert ("ray-tls" in mounted, "ray-authority" in mounted) == (True, False), component
        assert {"name": "RAY_USE_TLS", "value": "1"} in container["env"]
        script, _, _, *names = init["args"]
        command = [sys.executable, "-c", script, str(authority), str(made)]
        given = [name.replace("$(POD_IP)", "10.1.2.3") for name in names]
        subprocess.run([*command, *given], check=True)
    certificate = x509.load_pem_x509_certificate((made / "tls.crt").read_bytes())
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "10.1.2.3" in map(str, found.get_values_for_type(x509.IPAddress))
    assert "*.rag.svc.cluster.local" in found.get_values_for_type(x509.DNSName)
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate((made / "ca.crt").read_bytes()))
    ssl.create_default_context(cafile=str(made / "ca.crt")).load_cert_chain(
        made / "tls.crt", made / "tls.key"
    )
    assert os.stat(made / "tls.key").st_mode & 0o777 == 0o600


def test_without_it_nothing_is_made(helm: Helm) -> None:
    objects = helm.render(profile("multi-gpu-ha"))
    assert not [o for o in objects if o["metadata"]["name"].endswith("-ray-authority")]
    assert all("initContainers" not in template["spec"] for template in ray_templates(objects).values())
    refused = helm.refusal(profile("multi-gpu-ha"), **{"rayTls.existingSecret": "ours"})
    assert "rayTls.existingSecret: has no effect, since rayTls.enabled is false" in refused
