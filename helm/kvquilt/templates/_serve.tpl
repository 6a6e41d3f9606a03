{{- /*
The Serve configuration, as cluster/compose.py makes it from a quilt.yaml; a test compares the two.
"kvquilt.quilt": that quilt.yaml, i.e. `config` and what the cluster decides.
*/ -}}
{{- define "kvquilt.quilt" -}}
{{- $quilt := deepCopy .Values.config -}}
{{- $_ := set $quilt "data_dir" "/data" -}}
{{- with .Values.model.path }}{{ $_ := set $quilt "model" . }}{{ end -}}

{{- $objects := dict "endpoint" .Values.objects.endpoint "secure" .Values.objects.secure -}}
{{- if .Values.minio.enabled -}}
{{- $objects = dict "endpoint" (printf "%s:9000" (include "kvquilt.minio" .)) "secure" false -}}
{{- end -}}
{{- $_ := set $objects "bucket" .Values.objects.bucket -}}
{{- $_ := set $objects "region" .Values.objects.region -}}
{{- $_ := set $objects "prefix" .Values.objects.prefix -}}
{{- if include "kvquilt.objectsSecret" . }}{{ $_ := set $objects "credentials_file" "/etc/kvquilt/objects" }}{{ end -}}
{{- $milvus := default "/index/milvus" (include "kvquilt.milvusUri" .) -}}
{{- $onServices := dict "deployment" (dict "resources" (dict "kvquilt_services" 1)) -}}
{{- $generator := dict "deployment" (dict "resources" (dict "kvquilt_generator" 1)) -}}
{{- if not (dig "generator" "deployment" "max_replicas" 0 .Values.config) -}}
{{- $_ := set $generator.deployment "num_replicas" (int .Values.generator.replicas) -}}
{{- end -}}
{{- if .Values.generator.gpus -}}
{{- $_ := set $generator.deployment "num_gpus" .Values.generator.gpus -}}
{{- $device := dig "engine" "device" "cuda" (default dict .Values.config.generator) -}}
{{- $_ := set $generator "engine" (dict "device" $device) -}}
{{- end -}}
{{- $decided := dict "kv_store" (dict "objects" $objects) "retrieval" (dict "milvus_uri" $milvus) "generator" $generator -}}
{{- if .Values.monitoring.enabled }}{{ $_ := set $decided "metrics" (dict "port" (int .Values.monitoring.port) "host" "0.0.0.0") }}{{ end -}}
{{- $addresses := include "kvquilt.addresses" . | fromYaml -}}
{{- $selector := dig "selector" "model" "" $quilt -}}
{{- $_ := set $decided "selector" (dict "model" $selector) -}}
{{- $application := or $selector $addresses.selector | empty | ternary "" "selector" -}}
{{- range $name := list "ingestion" "gateway" -}}
{{- $_ := set $decided $name (dict "selector" $application) -}}
{{- with $addresses }}{{ $_ := set (get $decided $name) "addresses" (deepCopy .) }}{{ end -}}
{{- end -}}
{{- $_ := set $generator "selector" (dict "application" $application) -}}
{{- with dig "ingestion" "kv_context" "" $quilt -}}
{{- $context := . -}}
{{- range $name := list "gateway" "generator" -}}
{{- $_ := set (get $decided $name) "kv_context" (dig $name "kv_context" $context $quilt) -}}
{{- end -}}
{{- end -}}
{{- range list "kv_store" "retrieval" "ingestion" "gateway" "selector" -}}
{{- $_ := set $decided . (mergeOverwrite (default dict (get $decided .)) (deepCopy $onServices)) -}}
{{- end -}}
{{- if eq .Values.selector.placement "generators" -}}
{{- $_ := set $decided.selector "deployment" (dict "resources" (dict "kvquilt_selector" 1) "num_replicas" (int .Values.generator.replicas)) -}}
{{- end -}}
{{- /* In the services' pods nobody but the Envoy calls from loopback. */ -}}
{{- if .Values.tls.clientCaSecret }}{{ $_ := set $quilt "auth" (mergeOverwrite (default dict $quilt.auth) (dict "certificates" (dict "loopback" true))) }}{{ end -}}
{{- $_ := set $decided "auth" (dict "mode" .Values.auth.mode) -}}
{{- if eq .Values.auth.mode "required" -}}
{{- $_ := set $decided "auth" (dict "mode" "required" "keys_file" "/etc/kvquilt/keys/keys.json" "secret_file" "/etc/kvquilt/installation/secret") -}}
{{- end -}}
{{- mergeOverwrite $quilt $decided | toYaml -}}
{{- end -}}

{{- define "kvquilt.serveConfig" -}}
{{- $quilt := include "kvquilt.quilt" . | fromYaml -}}
{{- $addresses := include "kvquilt.addresses" . | fromYaml -}}
{{- $log := default dict $quilt.log -}}
{{- $servicers := list -}}
{{- if $quilt.internal_calls -}}
{{- range $pair := list "kv_store KvStore" "retrieval Retrieval" "generation Generation" "selection Selection" "ingest Ingest" "rag Rag" "rag Admin" -}}
{{- $words := splitList " " $pair -}}
{{- $servicers = append $servicers (printf "protos.kvquilt.v1.%s_pb2_grpc.add_%sServicer_to_server" (first $words) (last $words)) -}}
{{- end -}}
{{- else -}}
{{- range list "kv_store" "retrieval" "generation" "ingest" "rag" "admin" -}}
{{- $servicers = append $servicers (printf "shared.surface.add_%s" .) -}}
{{- end -}}
{{- end -}}
{{- $applications := list -}}
{{- range $name := list "kv_store" "retrieval" "generator" "selector" "ingestion" "gateway" -}}
{{- $section := get $quilt $name -}}
{{- $args := dict "data_dir" $quilt.data_dir -}}
{{- with $quilt.model }}{{ $_ := set $args "model" . }}{{ end -}}
{{- with $quilt.log }}{{ $_ := set $args "log" . }}{{ end -}}
{{- with $quilt.metrics }}{{ $_ := set $args "metrics" . }}{{ end -}}
{{- with $quilt.limits }}{{ $_ := set $args "limits" . }}{{ end -}}
{{- $_ := set $args "auth" $quilt.auth -}}
{{- with $quilt.tracing }}{{ $_ := set $args "tracing" . }}{{ end -}}
{{- with $quilt.audit }}{{ $_ := set $args "audit" . }}{{ end -}}
{{- if has $name (list "ingestion" "generator" "selector") -}}
{{- with $quilt.prompt }}{{ $_ := set $args "prompt" . }}{{ end -}}
{{- end -}}
{{- if has $name (list "kv_store" "generator") -}}
{{- with $quilt.sharing_scopes }}{{ $_ := set $args "sharing_scopes" . }}{{ end -}}
{{- end -}}
{{- $own := omit $section "deployment" -}}
{{- $told := dict -}}
{{- with $section.deployment.log }}{{ $_ := set $told "log" . }}{{ end -}}
{{- with $section.deployment.tracing }}{{ $_ := set $told "tracing" . }}{{ end -}}
{{- with $told }}{{ $_ := set $own "deployment" . }}{{ end -}}
{{- if $own }}{{ $_ := set $args $name $own }}{{ end -}}
{{- $deployment := include "kvquilt.deployment" (dict "name" $name "section" $section) | fromYaml -}}
{{- if and (not (hasKey $addresses $name)) (or (ne $name "selector") $section.model) -}}
{{- $applications = append $applications (dict
      "name" $name
      "route_prefix" (eq $name "gateway" | ternary "/" (printf "/%s" $name))
      "import_path" (printf "cluster.applications:%s" $name)
      "args" $args
      "deployments" (list $deployment)) -}}
{{- end -}}
{{- end -}}
{{- dict
      "proxy_location" "EveryNode"
      "http_options" (dict "host" "0.0.0.0" "port" 8000)
      "grpc_options" (dict "port" 9000 "grpc_servicer_functions" $servicers "enable_reflection" true)
      "logging_config" (dict
        "encoding" (upper (default "text" $log.format))
        "log_level" (default "INFO" $log.level)
        "enable_access_log" false)
      "applications" $applications | toYaml -}}
{{- end -}}

{{- /* What Serve changes without building the application anew: shared/deployment.py, serve_options. */ -}}
{{- define "kvquilt.deployment" -}}
{{- $d := .section.deployment -}}
{{- $replicas := hasKey $d "num_replicas" | ternary $d.num_replicas 1 | int -}}
{{- $most := int (default 0 $d.max_replicas) -}}
{{- $drain := hasKey $d "drain_s" | ternary $d.drain_s 20.0 | float64 -}}
{{- if gt $most $replicas }}{{ $drain = maxf $drain (hasKey $d "scale_down_s" | ternary $d.scale_down_s 600.0) }}{{ end -}}
name: {{ .name }}
max_ongoing_requests: {{ int (default 512 $d.max_ongoing_requests) }}
max_queued_requests: {{ hasKey $d "max_queued_requests" | ternary $d.max_queued_requests 256 | int }}
graceful_shutdown_timeout_s: {{ $drain }}
ray_actor_options:
  num_cpus: {{ default 0.0 $d.num_cpus }}
  num_gpus: {{ default 0.0 $d.num_gpus }}
  resources: {{ toJson $d.resources }}
  {{- with $d.memory_bytes }}
  memory: {{ int64 . }}
  {{- end }}
{{- if gt $most $replicas }}
autoscaling_config:
  min_replicas: {{ $replicas }}
  max_replicas: {{ $most }}
  target_ongoing_requests: {{ int (default 8 $d.target_ongoing_requests) }}
  look_back_period_s: 15.0
  upscale_delay_s: {{ hasKey $d "upscale_delay_s" | ternary $d.upscale_delay_s 10.0 }}
  downscale_delay_s: {{ hasKey $d "downscale_delay_s" | ternary $d.downscale_delay_s 300.0 }}
{{- if has .name (list "generator" "selector") }}
  policy:
    policy_function: shared.scaling:QueuePolicy
    policy_kwargs: {{ merge (dict) (default dict .section.scaling) (dict "queued_ms" 500.0 "latency_ms" 2000.0 "load" 0.8) | toJson }}
{{- end }}
{{- else }}
num_replicas: {{ $replicas }}
{{- end }}
{{- end -}}
