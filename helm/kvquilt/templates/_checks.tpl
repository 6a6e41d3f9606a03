{{- /* What a schema cannot say, or says badly. Every message names the value and the remedy. */ -}}
{{- define "kvquilt.checks" -}}
{{- $v := .Values -}}
{{- $config := $v.config -}}
{{- $name := include "kvquilt.fullname" . -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$" $name) -}}
{{- fail (printf "fullnameOverride: the name %q is not 1 to 40 lower-case letters, digits and hyphens, starting with a letter" $name) -}}
{{- end -}}

{{- /* cluster/addresses.py says why; what it checks besides, the chart's own values make void. */ -}}
{{- range $application, $_ := default dict $config.applications -}}
{{- if not (has $application (list "kv_store" "generator" "selector" "ingestion" "retrieval")) -}}
{{- fail (printf "config.applications.%s: only kv_store, generator, selector, ingestion and retrieval can be another cluster's" $application) -}}
{{- end -}}
{{- end -}}
{{- $addresses := include "kvquilt.addresses" . | fromYaml -}}
{{- range $application, $address := $addresses -}}
{{- if not (regexMatch "^(grpcs://)?([A-Za-z0-9_.-]+|\\[[0-9a-fA-F:.]+\\]):[0-9]{1,5}$" $address) -}}
{{- fail (printf "config.applications.%s.address: must be host:port, got %q; by TLS grpcs://host:port" $application $address) -}}
{{- end -}}
{{- $needed := list "kv_store" "generator" -}}
{{- if eq $application "retrieval" }}{{ $needed = list }}{{ end -}}
{{- if eq $application "ingestion" }}{{ $needed = append $needed "retrieval" }}{{ end -}}
{{- range $needed -}}
{{- if not (hasKey $addresses .) -}}
{{- fail (printf "config.applications.%s.address: needs config.applications.%s.address too (docs/transport.md), or leave it out" $application .) -}}
{{- end -}}
{{- end -}}
{{- range $setting, $_ := default dict (get $config $application) -}}
{{- fail (printf "config.%s.%s: has no effect, since config.applications.%s.address is set; set it there, or leave the address out" $application $setting $application) -}}
{{- end -}}
{{- end -}}
{{- if and (hasKey $addresses "kv_store") (not (hasKey $addresses "selector")) (dig "selector" "model" "" $config) -}}
{{- fail "config.selector.model: a selector keeps KV in the store of its own cluster; name config.applications.selector.address instead, or leave both out" -}}
{{- end -}}
{{- if and (hasKey $addresses "kv_store") (or $v.objects.endpoint $v.minio.enabled) -}}
{{- fail "objects.endpoint, minio.enabled: have no effect, since config.applications.kv_store.address is set; leave them out, or the address" -}}
{{- end -}}
{{- if and (hasKey $addresses "retrieval") (or $v.milvus.enabled $v.milvus.uri $v.milvus.existingSecret) -}}
{{- fail "milvus.enabled, milvus.uri, milvus.existingSecret: have no effect, since config.applications.retrieval.address is set; leave them out, or the address" -}}
{{- end -}}
{{- if and (hasKey $addresses "generator") (or $v.generator.gpus (gt (int $v.generator.replicas) 1)) -}}
{{- fail "generator.gpus, generator.replicas: have no effect, since config.applications.generator.address is set; leave them out, or the address" -}}
{{- end -}}

{{- if and $v.objects.endpoint $v.minio.enabled -}}
{{- fail "objects.endpoint: two object stores; set it, or minio.enabled, not both" -}}
{{- end -}}
{{- if not (or $v.objects.endpoint $v.minio.enabled (hasKey $addresses "kv_store")) -}}
{{- fail "objects.endpoint: an object store is required, pods keep copies only; set it to host:port of an S3-compatible store (with objects.existingSecret), or set minio.enabled=true for a trial" -}}
{{- end -}}
{{- if and $v.minio.enabled $v.objects.existingSecret -}}
{{- fail "objects.existingSecret: is for objects.endpoint; the trial MinIO's keys come from minio.existingSecret" -}}
{{- end -}}
{{- if and $v.milvus.uri $v.milvus.enabled -}}
{{- fail "milvus.uri: two of them; set it, or milvus.enabled, not both" -}}
{{- end -}}
{{- if and $v.milvus.existingSecret (not $v.milvus.uri) -}}
{{- fail "milvus.existingSecret: the embedded Milvus has no users; set milvus.uri, or leave the secret out" -}}
{{- end -}}
{{- if and $v.model.existingClaim (not (hasPrefix "/" $v.model.path)) -}}
{{- fail "model.path: say where model.existingClaim is to be mounted, such as /models/served" -}}
{{- end -}}
{{- if and $v.model.subPath (not $v.model.existingClaim) -}}
{{- fail "model.subPath: is a folder of model.existingClaim, which is empty" -}}
{{- end -}}
{{- with $v.model.pull -}}
{{- if and .model (not (and $v.model.existingClaim $v.model.subPath)) -}}
{{- fail "model.pull.model: is brought to a folder of a claim; set model.existingClaim, model.subPath (the folder) and model.path (where pods see it)" -}}
{{- end -}}
{{- if and .model (not (regexMatch "^[A-Za-z0-9][A-Za-z0-9_.-]*$" $v.model.subPath)) -}}
{{- fail (printf "model.subPath: %q is no name of a folder, to which model.pull.model is brought" $v.model.subPath) -}}
{{- end -}}
{{- if and .existingSecret (not .model) -}}
{{- fail "model.pull.existingSecret: is for model.pull.model, which is empty" -}}
{{- end -}}
{{- end -}}

{{- include "kvquilt.peerChecks" (dict "value" "networkPolicy.operator" "who" "operator" "example" "kuberay-system" "peers" $v.networkPolicy.operator) -}}

{{- $decided := dict
      "model" "model.path"
      "data_dir" "nothing: kvCache says where copies are kept"
      "grpc_port" "nothing: the Service listens on 9000"
      "grpc_host" "nothing: pods listen on their address"
      "http_port" "nothing: HTTP listens on 8000"
      "http_host" "nothing: pods listen on their address"
      "metrics.port" "monitoring.enabled and monitoring.port"
      "metrics.host" "monitoring.enabled"
      "tls_cert" "tls.existingSecret"
      "tls_key" "tls.existingSecret"
      "kv_store.directory" "nothing: kvCache says where copies are kept"
      "kv_store.host" "nothing: agents listen on their pod's address"
      "kv_store.objects.endpoint" "objects.endpoint"
      "kv_store.objects.bucket" "objects.bucket"
      "kv_store.objects.region" "objects.region"
      "kv_store.objects.prefix" "objects.prefix"
      "kv_store.objects.secure" "objects.secure"
      "retrieval.milvus_uri" "milvus.uri"
      "retrieval.milvus_token" "milvus.existingSecret"
      "auth.mode" "auth.mode"
      "auth.keys_file" "auth.existingSecret"
      "auth.secret_file" "auth.installationSecret"
      "auth.certificates.loopback" "tls.clientCaSecret"
      "generator.model" "model.path"
      "ingestion.model" "model.path"
      "selector.primary" "model.path"
      "ingestion.selector" "config.selector.model"
      "gateway.selector" "config.selector.model"
      "ingestion.addresses" "config.applications"
      "gateway.addresses" "config.applications"
      "generator.selector.application" "config.selector.model"
      "generator.deployment.num_gpus" "generator.gpus" -}}
{{- range $section := list "gateway" "ingestion" "retrieval" "kv_store" "generator" "selector" -}}
{{- $_ := set $decided (printf "%s.deployment.resources" $section) "nothing: the chart places the services" -}}
{{- $_ := set $decided (printf "%s.deployment.metrics" $section) "config.metrics" -}}
{{- end -}}
{{- range $setting, $instead := $decided -}}
{{- $node := $config -}}
{{- $found := true -}}
{{- range $key := splitList "." $setting -}}
{{- $found = and $found (kindIs "map" $node) (hasKey (kindIs "map" $node | ternary $node dict) $key) -}}
{{- if $found }}{{ $node = get $node $key }}{{ end -}}
{{- end -}}
{{- if $found -}}
{{- fail (printf "config.%s: the chart decides it; set %s" $setting $instead) -}}
{{- end -}}
{{- end -}}
{{- range $section := list "gateway" "ingestion" "retrieval" "kv_store" "selector" -}}
{{- if gt (float64 (dig $section "deployment" "num_gpus" 0 $config)) 0.0 -}}
{{- fail (printf "config.%s.deployment.num_gpus: only generators use GPUs; set generator.gpus" $section) -}}
{{- end -}}
{{- end -}}

{{- $generators := dig "generator" "deployment" dict $config -}}
{{- if and (hasKey $generators "num_replicas") (not $generators.max_replicas) -}}
{{- fail "config.generator.deployment.num_replicas: the chart decides it; set generator.replicas, or max_replicas beside it for replicas that come and go" -}}
{{- end -}}
{{- range $key := list "num_replicas" "max_replicas" -}}
{{- $n := int (dig $key 0 $generators) -}}
{{- if gt $n (int $v.generator.replicas) -}}
{{- fail (printf "config.generator.deployment.%s: is %d, but each has a pod of its own, and generator.replicas is %d; raise that, or lower this" $key $n (int $v.generator.replicas)) -}}
{{- end -}}
{{- end -}}

{{- if eq $v.selector.placement "generators" -}}
{{- if not (dig "selector" "model" "" $config) -}}
{{- fail "selector.placement: is generators, but there is no selector; set config.selector.model" -}}
{{- end -}}
{{- if hasKey $addresses "generator" -}}
{{- fail "selector.placement: is generators, but config.applications.generator.address leaves them to another cluster; use services" -}}
{{- end -}}
{{- range $key := list "num_replicas" "max_replicas" -}}
{{- if dig "selector" "deployment" $key 0 $config -}}
{{- fail (printf "config.selector.deployment.%s: there is one selector for each generator; set generator.replicas, or selector.placement=services" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $section := list "gateway" "ingestion" "retrieval" "kv_store" "selector" -}}
{{- $deployment := dig $section "deployment" dict $config -}}
{{- if and (hasKey $deployment "num_replicas") (not $deployment.num_replicas) (not $deployment.max_replicas) -}}
{{- fail (printf "config.%s.deployment.num_replicas: 0 needs a max_replicas to scale up to; set that, or at least 1" $section) -}}
{{- end -}}
{{- end -}}

{{- if include "kvquilt.embeddedIndex" . -}}
{{- if gt (int $v.services.replicas) 1 -}}
{{- fail (printf "services.replicas: is %d, but the embedded Milvus lives in one pod; use 1, or set milvus.enabled or milvus.uri" (int $v.services.replicas)) -}}
{{- end -}}
{{- range $key := list "num_replicas" "max_replicas" -}}
{{- $n := int (dig "retrieval" "deployment" $key 0 $config) -}}
{{- if gt $n 1 -}}
{{- fail (printf "config.retrieval.deployment.%s: is %d, but the embedded Milvus has one owner; use 1, or set milvus.enabled or milvus.uri" $key $n) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- $device := dig "generator" "engine" "device" "" $config -}}
{{- if and (hasPrefix "cuda" $device) (not $v.generator.gpus) -}}
{{- fail (printf "generator.gpus: is 0, but config.generator.engine.device is %s; set generator.gpus=1, or the device to cpu" $device) -}}
{{- end -}}
{{- if and $v.generator.gpus $device (not (hasPrefix "cuda" $device)) -}}
{{- fail (printf "config.generator.engine.device: is %s, but generator.gpus is %d; leave the device out, or set generator.gpus=0" $device (int $v.generator.gpus)) -}}
{{- end -}}

{{- range $section := list "gateway" "ingestion" "retrieval" "kv_store" "generator" "selector" -}}
{{- $drain := float64 (dig $section "deployment" "drain_s" 20 $config) -}}
{{- if gt $drain (include "kvquilt.drainSeconds" $ | float64) -}}
{{- fail (printf "terminationGracePeriodSeconds: is %d, but config.%s.deployment.drain_s is %v; it must be at least 15 s longer" (int $v.terminationGracePeriodSeconds) $section $drain) -}}
{{- end -}}
{{- end -}}

{{- if not $v.monitoring.enabled -}}
{{- range $part := list "podMonitor" "serviceMonitor" "rules" "dashboards" -}}
{{- if (get $v.monitoring $part).enabled -}}
{{- fail (printf "monitoring.%s.enabled: pods show no metrics; set monitoring.enabled=true too" $part) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $v.monitoring.podMonitor.enabled $v.monitoring.serviceMonitor.enabled -}}
{{- fail "monitoring.serviceMonitor.enabled: finds the same pods as monitoring.podMonitor, and everything would be counted twice; leave one of them off" -}}
{{- end -}}
{{- if has (int $v.monitoring.port) (list 6379 8000 8080 8265 9000) -}}
{{- fail (printf "monitoring.port: %d is taken in the pods; choose another one" (int $v.monitoring.port)) -}}
{{- end -}}
{{- if and (include "kvquilt.objectsSecret" .) (dig "kv_store" "objects" "credentials_file" "" $config) -}}
{{- fail "config.kv_store.objects.credentials_file: the keys come from objects.existingSecret, or the trial MinIO's secret; leave one of them out" -}}
{{- end -}}

{{- if and (eq $v.auth.mode "open") (or $v.auth.existingSecret $v.auth.installationSecret $v.tls.clientCaSecret (dig "auth" "tokens" "issuer" "" $config)) -}}
{{- fail "auth.mode: open asks nobody for keys, tokens or certificates; set it to required, or leave auth.existingSecret, auth.installationSecret, tls.clientCaSecret and config.auth.tokens out" -}}
{{- end -}}
{{- if and $v.rayTls.existingSecret (not $v.rayTls.enabled) -}}
{{- fail "rayTls.existingSecret: has no effect, since rayTls.enabled is false; set it, or leave the secret out" -}}
{{- end -}}
{{- if and $v.tls.clientCaSecret (not $v.tls.existingSecret) -}}
{{- fail "tls.clientCaSecret: client certificates need TLS; set tls.existingSecret (tls.crt, tls.key), or leave it out" -}}
{{- end -}}

{{- include "kvquilt.exposeChecks" . -}}
{{- include "kvquilt.redisChecks" . -}}
{{- include "kvquilt.rocksdbChecks" . -}}

{{- range $v.extraEnv -}}
{{- if has .name (list "KVQUILT_KV_STORE__DIRECTORY" "RAY_AUTH_MODE" "RAY_AUTH_TOKEN") -}}
{{- fail (printf "extraEnv: %s is set by the chart" .name) -}}
{{- end -}}
{{- if has .name (list "RAY_REDIS_ADDRESS" "REDIS_USERNAME" "REDIS_PASSWORD" "RAY_external_storage_namespace") -}}
{{- fail (printf "extraEnv: %s is KubeRay's to set; set head.faultTolerance.redis" .name) -}}
{{- end -}}
{{- if has .name (list "RAY_gcs_storage" "RAY_gcs_storage_path") -}}
{{- fail (printf "extraEnv: %s is set by the chart; set head.faultTolerance.rocksdb" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* How long a worker that is asked to end lets its requests finish and its replicas move; the rest of the grace is for ending. */ -}}
{{- define "kvquilt.drainSeconds" -}}
{{- sub (int .Values.terminationGracePeriodSeconds) 15 -}}
{{- end -}}

{{- /* One who has a label is not known by it: anybody may put it on. In: value, its peers, who they are, an example of a namespace. */ -}}
{{- define "kvquilt.peerChecks" -}}
{{- range $i, $peer := .peers -}}
{{- if and (hasKey $peer "podSelector") (hasKey $peer "namespaceSelector") (not $peer.namespaceSelector) -}}
{{- fail (printf "%s[%d]: admits every pod of any namespace that carries the %s's label; name the %s's namespace, such as namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}" $.value $i $.who $.who $.example) -}}
{{- end -}}
{{- if not (or $peer.podSelector $peer.namespaceSelector $peer.ipBlock) -}}
{{- fail (printf "%s[%d]: admits everybody; name the %s by namespaceSelector and podSelector, or by ipBlock" $.value $i $.who) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Where the head's book-keeping is kept. A secret is looked into where there is a cluster to ask. */ -}}
{{- define "kvquilt.redisChecks" -}}
{{- with .Values.head.faultTolerance.redis -}}
{{- $value := "head.faultTolerance.redis" -}}
{{- if not .address -}}
{{- range $key := list "username" "existingSecret" -}}
{{- if get $.Values.head.faultTolerance.redis $key -}}
{{- fail (printf "%s.%s: has no effect, since %s.address is empty; set that to host:port, or leave the %s out" $value $key $value $key) -}}
{{- end -}}
{{- end -}}
{{- else if contains "@" .address -}}
{{- fail (printf "%s.address: holds a user or a password, which everybody would read; set %s.username, and %s.existingSecret to a secret with the key password" $value $value $value) -}}
{{- else if not (regexMatch "^(rediss?://)?([A-Za-z0-9_.-]+|\\[[0-9a-fA-F:.]+\\]):[0-9]{1,5}$" .address) -}}
{{- fail (printf "%s.address: must be host:port, got %q; by TLS rediss://host:port" $value .address) -}}
{{- end -}}
{{- if and .username (not .existingSecret) -}}
{{- fail (printf "%s.username: %q has no password; set %s.existingSecret to a secret with the key password" $value .username $value) -}}
{{- end -}}
{{- with .existingSecret -}}
{{- $secret := lookup "v1" "Secret" $.Release.Namespace . -}}
{{- if and $secret (not (hasKey (default dict $secret.data) "password")) -}}
{{- fail (printf "%s.existingSecret: the secret %q has no key password, but %s; add it, or name another one" $value . (keys (default dict $secret.data) | sortAlpha | join ", " | default "none at all")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kvquilt.rocksdbChecks" -}}
{{- with .Values.head.faultTolerance.rocksdb -}}
{{- $value := "head.faultTolerance.rocksdb" -}}
{{- if and .enabled (include "kvquilt.redis" $) -}}
{{- fail (printf "%s.enabled: the Redis of head.faultTolerance.redis keeps the same; leave one of them out" $value) -}}
{{- end -}}
{{- if and .existingClaim (not .enabled) -}}
{{- fail (printf "%s.existingClaim: has no effect, since %s.enabled is false; set that, or leave the claim out" $value $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}
