{{- /* What a schema cannot say, or says badly. Every message names the value and the remedy. */ -}}
{{- define "kvquilt.checks" -}}
{{- $v := .Values -}}
{{- $config := $v.config -}}
{{- $name := include "kvquilt.fullname" . -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$" $name) -}}
{{- fail (printf "fullnameOverride: the name %q is not 1 to 40 lower-case letters, digits and hyphens, starting with a letter" $name) -}}
{{- end -}}

{{- if and $v.objects.endpoint $v.minio.enabled -}}
{{- fail "objects.endpoint: two object stores; set it, or minio.enabled, not both" -}}
{{- end -}}
{{- if not (or $v.objects.endpoint $v.minio.enabled) -}}
{{- fail "objects.endpoint: an object store is required, pods keep copies only; set it to host:port of an S3-compatible store (with objects.existingSecret), or set minio.enabled=true for a trial" -}}
{{- end -}}
{{- if and $v.minio.enabled $v.objects.existingSecret -}}
{{- fail "objects.existingSecret: is for objects.endpoint; the trial MinIO's keys come from minio.existingSecret" -}}
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

{{- $decided := dict
      "model" "model.path"
      "data_dir" "nothing: kvCache says where copies are kept"
      "grpc_port" "nothing: the Service listens on 9000"
      "http_port" "nothing: health is checked on 8000"
      "http_host" "nothing: pods listen on their address"
      "kv_store.directory" "nothing: kvCache says where copies are kept"
      "kv_store.host" "nothing: agents listen on their pod's address"
      "kv_store.objects.endpoint" "objects.endpoint"
      "kv_store.objects.bucket" "objects.bucket"
      "kv_store.objects.region" "objects.region"
      "kv_store.objects.prefix" "objects.prefix"
      "kv_store.objects.secure" "objects.secure"
      "retrieval.milvus_uri" "milvus.uri"
      "retrieval.milvus_token" "milvus.existingSecret"
      "generator.model" "model.path"
      "ingestion.model" "model.path"
      "selector.primary" "model.path"
      "ingestion.selector" "config.selector.model"
      "gateway.selector" "config.selector.model"
      "generator.selector.application" "config.selector.model"
      "generator.deployment.num_replicas" "generator.replicas"
      "generator.deployment.max_replicas" "generator.replicas"
      "generator.deployment.num_gpus" "generator.gpus" -}}
{{- range $section := list "gateway" "ingestion" "retrieval" "kv_store" "generator" "selector" -}}
{{- $_ := set $decided (printf "%s.deployment.resources" $section) "nothing: the chart places the services" -}}
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

{{- if not $v.milvus.uri -}}
{{- if gt (int $v.services.replicas) 1 -}}
{{- fail (printf "services.replicas: is %d, but the embedded Milvus lives in one pod; use 1, or set milvus.uri" (int $v.services.replicas)) -}}
{{- end -}}
{{- range $key := list "num_replicas" "max_replicas" -}}
{{- $n := int (dig "retrieval" "deployment" $key 0 $config) -}}
{{- if gt $n 1 -}}
{{- fail (printf "config.retrieval.deployment.%s: is %d, but the embedded Milvus has one owner; use 1, or set milvus.uri" $key $n) -}}
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

{{- range $v.extraEnv -}}
{{- if has .name (list "KVQUILT_KV_STORE__DIRECTORY" "RAY_AUTH_MODE" "RAY_AUTH_TOKEN") -}}
{{- fail (printf "extraEnv: %s is set by the chart" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* How long a worker that is asked to end lets its requests finish and its replicas move; the rest of the grace is for ending. */ -}}
{{- define "kvquilt.drainSeconds" -}}
{{- sub (int .Values.terminationGracePeriodSeconds) 15 -}}
{{- end -}}
