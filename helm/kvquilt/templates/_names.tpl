{{- define "kvquilt.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- end -}}
{{- end -}}

{{- define "kvquilt.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kvquilt.labels" -}}
{{ include "kvquilt.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "kvquilt.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{- define "kvquilt.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "kvquilt.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* Application: host:port, of those that another cluster serves (config.applications). */ -}}
{{- define "kvquilt.addresses" -}}
{{- $addresses := dict -}}
{{- range $name, $application := default dict .Values.config.applications -}}
{{- with $application.address }}{{ $_ := set $addresses $name (trimPrefix "grpc://" .) }}{{ end -}}
{{- end -}}
{{- toYaml $addresses -}}
{{- end -}}

{{- /* Milvus' address; empty: a pod of the services holds it. */ -}}
{{- define "kvquilt.milvusUri" -}}
{{- .Values.milvus.enabled | ternary (printf "http://%s:19530" (include "kvquilt.milvus" .)) .Values.milvus.uri -}}
{{- end -}}

{{- define "kvquilt.milvus" -}}
{{ include "kvquilt.fullname" . }}-milvus
{{- end -}}

{{- /* Whether a pod of the services holds the embedded Milvus; empty: none does. */ -}}
{{- define "kvquilt.embeddedIndex" -}}
{{- if not (or (include "kvquilt.milvusUri" .) (hasKey (include "kvquilt.addresses" . | fromYaml) "retrieval")) -}}true{{- end -}}
{{- end -}}

{{- /* Whether generators are deployed; empty: another cluster's are used. */ -}}
{{- define "kvquilt.hasGenerators" -}}
{{- if not (hasKey (include "kvquilt.addresses" . | fromYaml) "generator") -}}true{{- end -}}
{{- end -}}

{{- define "kvquilt.minio" -}}
{{ include "kvquilt.fullname" . }}-minio
{{- end -}}

{{- /* The secret with the object store's keys; empty: none is named, and the environment has to have them. */ -}}
{{- define "kvquilt.objectsSecret" -}}
{{- if .Values.minio.enabled -}}
{{- default (include "kvquilt.minio" .) .Values.minio.existingSecret -}}
{{- else -}}
{{- .Values.objects.existingSecret -}}
{{- end -}}
{{- end -}}

{{- /* The secret with keys.json, and the one that the services know each other by. */ -}}
{{- define "kvquilt.keysSecret" -}}
{{- default (printf "%s-keys" (include "kvquilt.fullname" .)) .Values.auth.existingSecret -}}
{{- end -}}

{{- define "kvquilt.installationSecret" -}}
{{- default (printf "%s-installation" (include "kvquilt.fullname" .)) .Values.auth.installationSecret -}}
{{- end -}}

{{- /* The secret with the authority of Ray's own certificates. */ -}}
{{- define "kvquilt.raySecret" -}}
{{- default (printf "%s-ray-authority" (include "kvquilt.fullname" .)) .Values.rayTls.existingSecret -}}
{{- end -}}

{{- define "kvquilt.minioClaim" -}}
{{- default (include "kvquilt.minio" .) .Values.minio.persistence.existingClaim -}}
{{- end -}}

{{- define "kvquilt.milvusClaim" -}}
{{- default (include "kvquilt.milvus" .) .Values.milvus.persistence.existingClaim -}}
{{- end -}}

{{- define "kvquilt.rocksdbClaim" -}}
{{- default (printf "%s-head" (include "kvquilt.fullname" .)) .Values.head.faultTolerance.rocksdb.existingClaim -}}
{{- end -}}

{{- /* Whether a Redis keeps the head's book-keeping; empty: it ends with the head. */ -}}
{{- define "kvquilt.redis" -}}
{{- .Values.head.faultTolerance.redis.address -}}
{{- end -}}

{{- /*
An annotation of what the head's pod names. With a Redis KubeRay has a finalizer: a job with that pod's template takes the
book-keeping out of Redis once the release is uninstalled, so what it names outlives the release.
*/ -}}
{{- define "kvquilt.outlivesForRedis" -}}
{{- if include "kvquilt.redis" . }}helm.sh/resource-policy: keep{{ end -}}
{{- end -}}
