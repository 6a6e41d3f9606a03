{{- /* A pod of Ray. In: root (the chart's context), component (head, services, generator), group (its values). */ -}}
{{- define "kvquilt.rayPod" -}}
{{- $v := .root.Values -}}
{{- $isHead := eq .component "head" -}}
{{- $asked := eq $v.auth.mode "required" -}}
{{- $hasTls := and (eq .component "services") $v.tls.existingSecret -}}
{{- $hasIndex := and (eq .component "services") (include "kvquilt.embeddedIndex" .root) -}}
{{- $rocksdb := $v.head.faultTolerance.rocksdb.enabled -}}
metadata:
  labels:
    {{- include "kvquilt.selectorLabels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
    app.kubernetes.io/part-of: ray
  {{- with .group.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "kvquilt.serviceAccountName" .root }}
  automountServiceAccountToken: false
  # Without it, a Service called kvquilt-… would show up in the environment as a setting of that name.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ $v.terminationGracePeriodSeconds }}
  securityContext:
    {{- include "kvquilt.podSecurityContext" . | nindent 4 }}
  {{- with $v.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- with .group.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with .group.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .group.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .group.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if and $v.topologySpread.enabled (not $isHead) }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: {{ $v.topologySpread.topologyKey }}
      whenUnsatisfiable: {{ $v.topologySpread.whenUnsatisfiable }}
      labelSelector:
        matchLabels:
          {{- include "kvquilt.selectorLabels" .root | nindent 10 }}
          app.kubernetes.io/component: {{ .component }}
  {{- end }}
  {{- if $v.rayTls.enabled }}
  initContainers:
    - name: ray-certificate
      image: {{ include "kvquilt.image" .root }}
      imagePullPolicy: {{ $v.image.pullPolicy }}
      securityContext:
        {{- include "kvquilt.securityContext" . | nindent 8 }}
      command: [python, -c]
      args:
        - |
          {{- .root.Files.Get "files/ray_certificate.py" | nindent 10 }}
        - /etc/kvquilt/ray-authority
        - /etc/kvquilt/ray-tls
        - $(POD_IP)
        - 127.0.0.1
        - localhost
        {{- /* The head's Service, whatever KubeRay calls it. */}}
        - "*.{{ .root.Release.Namespace }}.svc"
        - "*.{{ .root.Release.Namespace }}.svc.cluster.local"
      env:
        - name: POD_IP
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
      resources:
        requests: {cpu: 20m, memory: 64Mi}
        limits: {memory: 256Mi}
      volumeMounts:
        - {name: ray-authority, mountPath: /etc/kvquilt/ray-authority, readOnly: true}
        - {name: ray-tls, mountPath: /etc/kvquilt/ray-tls}
  {{- end }}
  containers:
    - name: ray
      image: {{ include "kvquilt.image" .root }}
      imagePullPolicy: {{ $v.image.pullPolicy }}
      securityContext:
        {{- include "kvquilt.securityContext" . | nindent 8 }}
      ports:
        {{- if $isHead }}
        - {name: gcs-server, containerPort: 6379}
        - {name: dashboard, containerPort: 8265}
        - {name: serve-grpc, containerPort: 9000}
        {{- else }}
        # KubeRay's readiness probe looks for this name.
        - {name: serve, containerPort: 8000}
        - {name: grpc, containerPort: 9000}
        {{- end }}
        {{- if $v.monitoring.enabled }}
        # KubeRay calls Ray's own port `metrics`.
        - {name: kvquilt-metrics, containerPort: {{ $v.monitoring.port }}}
        {{- end }}
      env:
        {{- include "kvquilt.rayEnv" .root | nindent 8 }}
        {{- /* Retrieval runs on the services; what it is built from is put together on the head. */}}
        {{- if and $v.milvus.existingSecret (ne .component "generator") }}
        - name: KVQUILT_RETRIEVAL__MILVUS_TOKEN
          valueFrom: {secretKeyRef: {name: {{ $v.milvus.existingSecret }}, key: token}}
        {{- end }}
        # On SIGTERM Ray tells Serve, which moves the replicas, and waits for their requests. The head has nobody to move to.
        - {name: RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S, value: {{ $isHead | ternary "0" (include "kvquilt.drainSeconds" .root) | quote }}}
        {{- if and $rocksdb $isHead }}
        - {name: RAY_gcs_storage, value: rocksdb}
        - {name: RAY_gcs_storage_path, value: /gcs}
        {{- else if $rocksdb }}
        # How long they wait for another head; with a Redis KubeRay says the same.
        - {name: RAY_gcs_rpc_server_reconnect_timeout_s, value: "600"}
        {{- end }}
      {{- with $v.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $v.probes.liveness }}
      livenessProbe:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if not $isHead }}
      {{- with $v.probes.readiness }}
      readinessProbe:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- end }}
      resources:
        {{- include "kvquilt.resources" . | nindent 8 }}
      volumeMounts:
        - {name: shm, mountPath: /dev/shm}
        - {name: tmp, mountPath: /tmp}
        - {name: kv-cache, mountPath: /data}
        {{- if $v.rayTls.enabled }}
        - {name: ray-tls, mountPath: /etc/kvquilt/ray-tls, readOnly: true}
        {{- end }}
        {{- if include "kvquilt.objectsSecret" .root }}
        - {name: objects, mountPath: /etc/kvquilt/objects, readOnly: true}
        {{- end }}
        {{- if $asked }}
        - {name: installation, mountPath: /etc/kvquilt/installation, readOnly: true}
        {{- end }}
        {{- if and $asked (not $isHead) }}
        - {name: keys, mountPath: /etc/kvquilt/keys, readOnly: true}
        {{- end }}
        {{- if $v.model.existingClaim }}
        - name: model
          mountPath: {{ $v.model.path }}
          readOnly: true
          {{- with $v.model.subPath }}
          subPath: {{ . }}
          {{- end }}
        {{- end }}
        {{- if $hasIndex }}
        - {name: index, mountPath: /index}
        {{- end }}
        {{- if and $rocksdb $isHead }}
        # Of each Ray cluster its own: the two of a takeover stand side by side. KubeRay sets the variable.
        - {name: gcs, mountPath: /gcs, subPathExpr: $(RAY_CLUSTER_NAME)}
        {{- end }}
    {{- if $hasTls }}
    - name: tls
      image: {{ $v.tls.image.repository }}:{{ $v.tls.image.tag }}
      imagePullPolicy: {{ $v.tls.image.pullPolicy }}
      command: [envoy]
      args: [--config-path, /etc/kvquilt/envoy/envoy.yaml, --disable-hot-restart, --log-level, warning]
      securityContext:
        {{- include "kvquilt.securityContext" . | nindent 8 }}
      ports:
        - {name: tls, containerPort: 9443}
      readinessProbe:
        tcpSocket: {port: tls}
        periodSeconds: 5
      resources:
        {{- toYaml $v.tls.resources | nindent 8 }}
      volumeMounts:
        - {name: envoy, mountPath: /etc/kvquilt/envoy, readOnly: true}
        - {name: tls, mountPath: /etc/kvquilt/tls, readOnly: true}
        {{- if $v.tls.clientCaSecret }}
        - {name: client-ca, mountPath: /etc/kvquilt/client-ca, readOnly: true}
        {{- end }}
    {{- end }}
  volumes:
    {{- if $hasTls }}
    - name: envoy
      configMap: {name: {{ include "kvquilt.fullname" .root }}-tls}
    - name: tls
      secret: {secretName: {{ $v.tls.existingSecret }}, defaultMode: 288}
    {{- with $v.tls.clientCaSecret }}
    - name: client-ca
      secret: {secretName: {{ . }}, defaultMode: 288, items: [{key: ca.crt, path: ca.crt}]}
    {{- end }}
    {{- end }}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ .group.shmSize }}}
    - name: tmp
      emptyDir: {}
    - name: kv-cache
      {{- include "kvquilt.kvCache" $v.kvCache | nindent 6 }}
    {{- if $v.rayTls.enabled }}
    # The authority's key is the init container's alone.
    - name: ray-authority
      secret: {secretName: {{ include "kvquilt.raySecret" .root }}, defaultMode: 288}
    - name: ray-tls
      emptyDir: {medium: Memory, sizeLimit: 1Mi}
    {{- end }}
    {{- with include "kvquilt.objectsSecret" .root }}
    # For the agent of the KV store, which every pod has; no process finds them in its environment.
    - name: objects
      secret:
        secretName: {{ . }}
        defaultMode: 288  # 0440
        items:
          - {key: AWS_ACCESS_KEY_ID, path: access-key}
          - {key: AWS_SECRET_ACCESS_KEY, path: secret-key}
    {{- end }}
    {{- if $asked }}
    - name: installation
      secret:
        secretName: {{ include "kvquilt.installationSecret" .root }}
        defaultMode: 288
        items: [{key: secret, path: secret}]
    {{- end }}
    {{- if and $asked (not $isHead) }}
    # Hashes; the head answers no calls.
    - name: keys
      secret:
        secretName: {{ include "kvquilt.keysSecret" .root }}
        defaultMode: 288
        items: [{key: keys.json, path: keys.json}]
    {{- end }}
    {{- if $v.model.existingClaim }}
    - name: model
      persistentVolumeClaim: {claimName: {{ $v.model.existingClaim }}, readOnly: true}
    {{- end }}
    {{- if $hasIndex }}
    - name: index
      persistentVolumeClaim: {claimName: {{ include "kvquilt.milvusClaim" .root }}}
    {{- end }}
    {{- if and $rocksdb $isHead }}
    - name: gcs
      persistentVolumeClaim: {claimName: {{ include "kvquilt.rocksdbClaim" .root }}}
    {{- end }}
{{- end -}}

{{- define "kvquilt.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "kvquilt.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* A generator's GPUs are asked for here. */ -}}
{{- define "kvquilt.resources" -}}
{{- $resources := deepCopy .group.resources -}}
{{- if and (eq .component "generator") .group.gpus -}}
{{- $_ := set $resources "limits" (merge (dict .group.gpuResource .group.gpus) (default dict $resources.limits)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- define "kvquilt.kvCache" -}}
{{- if .storageClass -}}
ephemeral:
  volumeClaimTemplate:
    spec:
      accessModes: [ReadWriteOnce]
      storageClassName: {{ .storageClass }}
      resources: {requests: {storage: {{ .sizeLimit }}}}
{{- else -}}
emptyDir:
  sizeLimit: {{ .sizeLimit }}
  {{- with .medium }}
  medium: {{ . }}
  {{- end }}
{{- end -}}
{{- end -}}

{{- define "kvquilt.rayEnv" -}}
- {name: HOME, value: /tmp}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
# What no request may exceed is not taken in at all (docs/limits.md).
{{- $limits := default dict .Values.config.limits }}
- name: RAY_SERVE_GRPC_MAX_MESSAGE_SIZE
  value: {{ max (default 4194304 $limits.message_bytes) (default 134217728 $limits.upsert_bytes) (default 268435456 $limits.document_bytes) | quote }}
# Callers that take nothing of their answers are cut: shared/slow_readers.py.
- name: _KVQUILT_STALL_S
  value: {{ default 60 $limits.stall_s | quote }}
- {name: RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH, value: shared.slow_readers.guards}
# Health checks go on when the clock is set: shared/steady_clock.py.
- {name: RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH, value: shared.steady_clock.use_steady_clock}
# Serve replaces a proxy that died after three looks at it.
- {name: RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S, value: "2"}
# Calls to a node that is cut off end after half a minute at the latest, and not only when Ray gives it up.
- {name: RAY_grpc_client_keepalive_time_ms, value: "10000"}
- {name: RAY_grpc_client_keepalive_timeout_ms, value: "20000"}
- {name: RAY_DEDUP_LOGS, value: "0"}
- {name: RAY_COLOR_PREFIX, value: "0"}
{{- if eq .Values.rayAuth "disabled" }}
- {name: RAY_AUTH_MODE, value: disabled}
{{- end }}
{{- if .Values.rayTls.enabled }}
- {name: RAY_USE_TLS, value: "1"}
- {name: RAY_TLS_SERVER_CERT, value: /etc/kvquilt/ray-tls/tls.crt}
- {name: RAY_TLS_SERVER_KEY, value: /etc/kvquilt/ray-tls/tls.key}
- {name: RAY_TLS_CA_CERT, value: /etc/kvquilt/ray-tls/ca.crt}
{{- end }}
{{- if .Values.logsToStdout }}
- {name: RAY_LOG_TO_STDERR, value: "1"}
# Of Ray itself; the services' level is config.log.level.
- {name: RAY_BACKEND_LOG_LEVEL, value: warning}
- {name: RAY_LOGGER_LEVEL, value: warning}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}
