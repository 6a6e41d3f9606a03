{{- /* What `expose` cannot mean. Every message names the value and the remedy. */ -}}
{{- define "kvquilt.exposeChecks" -}}
{{- $v := .Values -}}
{{- $e := $v.expose -}}
{{- $isGateway := eq $e.kind "Gateway" -}}
{{- if not $e.kind -}}
{{- range $value, $given := dict "http.host" $e.http.host "grpc.host" $e.grpc.host "className" $e.className "parentRefs" $e.parentRefs "controller" $e.controller -}}
{{- if $given -}}
{{- fail (printf "expose.%s: has no effect, since expose.kind is empty; set it to Ingress or Gateway, or leave it out" $value) -}}
{{- end -}}
{{- end -}}
{{- else -}}

{{- if eq $v.auth.mode "open" -}}
{{- fail "expose.kind: auth.mode is open, so whoever reaches the name would be an administrator; set auth.mode to required, or leave expose.kind out" -}}
{{- end -}}
{{- if not (or $e.http.host $e.grpc.host) -}}
{{- fail "expose.kind: exposes nothing; set expose.http.host, expose.grpc.host or both" -}}
{{- end -}}
{{- if eq $e.http.host $e.grpc.host -}}
{{- fail "expose.grpc.host: is expose.http.host, and a host has one kind of route; give gRPC a name of its own, such as grpc.quilt.example" -}}
{{- end -}}
{{- if and $e.http.host (not $v.service.http) -}}
{{- fail "expose.http.host: nobody reaches HTTP, since service.http is false; set it to true, or leave the host out" -}}
{{- end -}}

{{- if not $isGateway -}}
{{- with $e.parentRefs -}}
{{- fail "expose.parentRefs: are Gateways, and expose.kind is Ingress; set it to Gateway, or leave them out" -}}
{{- end -}}
{{- else if and $e.className $e.parentRefs -}}
{{- fail "expose.parentRefs: the chart makes a Gateway of expose.className; leave one of them out" -}}
{{- else if not (or $e.className $e.parentRefs) -}}
{{- fail "expose.parentRefs: name the Gateway that is there already, or by expose.className the class of one that the chart makes" -}}
{{- end -}}
{{- range $i, $parent := $e.parentRefs -}}
{{- if not $parent.sectionName -}}
{{- fail (printf "expose.parentRefs[%d].sectionName: name the listener that ends TLS, else the Gateway's listeners without TLS take keys too" $i) -}}
{{- end -}}
{{- end -}}

{{- range $door := list "http" "grpc" -}}
{{- $given := get $e $door -}}
{{- if and $given.host (not $given.tlsSecret) (not $e.parentRefs) -}}
{{- fail (printf "expose.%s.tlsSecret: without TLS keys and documents would travel readable; name a secret with tls.crt and tls.key for %s" $door $given.host) -}}
{{- end -}}
{{- if and $given.tlsSecret (not $given.host) -}}
{{- fail (printf "expose.%s.tlsSecret: has no effect, since expose.%s.host is empty; set it, or leave the secret out" $door $door) -}}
{{- end -}}
{{- if and $given.tlsSecret $e.parentRefs -}}
{{- fail (printf "expose.%s.tlsSecret: has no effect, since the Gateway of expose.parentRefs has the certificate; leave it out" $door) -}}
{{- end -}}
{{- end -}}

{{- if and $isGateway $v.tls.existingSecret (not $e.backend.hostname) -}}
{{- fail "expose.backend.hostname: the pods end TLS (tls.existingSecret); say a name in their certificate, by which the Gateway knows them" -}}
{{- end -}}
{{- if and (or $e.backend.hostname $e.backend.caConfigMap) (not (and $isGateway $v.tls.existingSecret)) -}}
{{- fail "expose.backend: is for expose.kind Gateway before pods that end TLS (tls.existingSecret); set both, or leave it out" -}}
{{- end -}}

{{- if and $v.networkPolicy.enabled (not $e.controller) -}}
{{- fail "expose.controller: the network policy admits nobody from outside; name the pods of the controller, such as {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress-nginx}}}" -}}
{{- end -}}
{{- include "kvquilt.peerChecks" (dict "value" "expose.controller" "who" "controller" "example" "ingress-nginx" "peers" $e.controller) -}}
{{- end -}}
{{- end -}}
