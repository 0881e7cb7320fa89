{{- define "icestream.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Room is left for the longest suffix of an object's name. */}}
{{- define "icestream.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 45 | trimSuffix "-" -}}
{{- else if contains (include "icestream.name" .) .Release.Name -}}
{{- .Release.Name | trunc 45 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "icestream.name" .) | trunc 45 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What never changes in a release: selectors are immutable. Called with (list $ component). */}}
{{- define "icestream.selectorLabels" -}}
app.kubernetes.io/name: {{ include "icestream.name" (first .) }}
app.kubernetes.io/instance: {{ (first .).Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end -}}

{{- define "icestream.labels" -}}
{{ include "icestream.selectorLabels" . }}
app.kubernetes.io/version: {{ (first .).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (first .).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (first .).Chart.Name (first .).Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Called with (list $ image). */}}
{{- define "icestream.image" -}}
{{- $root := first . -}}
{{- $image := last . -}}
{{- with $root.Values.image.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ end -}}
{{- end -}}

{{- define "icestream.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Called with (list $ account suffix). */}}
{{- define "icestream.serviceAccountName" -}}
{{- $root := first . -}}
{{- $account := index . 1 -}}
{{- if $account.create -}}
{{- $account.name | default (printf "%s-%s" (include "icestream.fullname" $root) (last .)) -}}
{{- else -}}
{{- $account.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "icestream.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "icestream.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* How the service and the migration reach the database. A variable of one's own settings comes after these. */}}
{{- define "icestream.databaseEnv" -}}
{{- $database := .Values.database -}}
{{- if $database.host }}
{{- $host := ternary (printf "[%s]" $database.host) $database.host (contains ":" $database.host) }}
# libpq takes the password from its own variable, so none has to be escaped for a URL.
- name: PGPASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ $database.existingSecret }}
      key: {{ $database.passwordKey }}
- name: ICESTREAM_DATABASE_URL
  value: {{ printf "postgresql+psycopg://%s@%s:%d/%s?sslmode=%s" ($database.user | urlquery) $host (int $database.port) ($database.name | urlquery) $database.sslMode | quote }}
{{- else }}
- name: ICESTREAM_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ $database.existingSecret }}
      key: {{ $database.urlKey }}
{{- end }}
{{- if $database.caKey }}
- name: PGSSLROOTCERT
  value: /etc/icestream/database/ca.crt
{{- else if hasPrefix "verify-" $database.sslMode }}
# The authorities that the image knows.
- name: PGSSLROOTCERT
  value: system
{{- end }}
{{- end -}}

{{/* The authority that signed the database's certificate. */}}
{{- define "icestream.databaseVolumes" -}}
{{- if .Values.database.caKey }}
- name: database
  secret:
    secretName: {{ .Values.database.existingSecret }}
    items:
      - key: {{ .Values.database.caKey }}
        path: ca.crt
{{- end }}
{{- end -}}

{{- define "icestream.databaseVolumeMounts" -}}
{{- if .Values.database.caKey }}
- name: database
  mountPath: /etc/icestream/database
  readOnly: true
{{- end }}
{{- end -}}

{{/* What the service shows its lookup servers. */}}
{{- define "icestream.lookupToken" -}}
- name: ICESTREAM_LOOKUP_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .Values.auth.existingSecret }}
      key: {{ .Values.auth.lookupKey }}
{{- end -}}

{{/* Arrow and polars would take one thread for each CPU of the node. Called with the container's name. */}}
{{- define "icestream.threadsEnv" -}}
{{- $container := . -}}
{{- range list "OMP_NUM_THREADS" "POLARS_MAX_THREADS" }}
- name: {{ . }}
  valueFrom:
    resourceFieldRef:
      containerName: {{ $container }}
      resource: limits.cpu
      divisor: "1"
{{- end }}
{{- end -}}

{{/* Settings of the service, and of the migration, which checks the same. */}}
{{- define "icestream.serviceEnv" -}}
- name: ICESTREAM_HOST
  value: {{ .Values.service.listenAddress | quote }}
- name: ICESTREAM_PORT
  value: "8000"
- name: ICESTREAM_DATA_DIR
  value: /tmp/icestream
{{ include "icestream.databaseEnv" . | trim }}
- name: ICESTREAM_BOOTSTRAP_KEY
  valueFrom:
    secretKeyRef:
      name: {{ .Values.auth.existingSecret }}
      key: {{ .Values.auth.adminKey }}
{{- if .Values.worker.enabled }}
- name: ICESTREAM_BOOTSTRAP_WORKER_KEY
  valueFrom:
    secretKeyRef:
      name: {{ .Values.auth.existingSecret }}
      key: {{ .Values.auth.workerKey }}
{{- end }}
- name: ICESTREAM_INDEX_WAREHOUSE
  value: {{ .Values.index.warehouse | quote }}
{{- with .Values.allowedLocations }}
- name: ICESTREAM_ALLOWED_LOCATIONS
  value: {{ join "," . | quote }}
{{- end }}
{{- with .Values.catalogs.allowedHosts }}
- name: ICESTREAM_ALLOWED_HOSTS
  value: {{ join "," . | quote }}
{{- end }}
{{- with .Values.catalogs.allowedSecrets }}
- name: ICESTREAM_ALLOWED_SECRETS
  value: {{ join "," . | quote }}
{{- end }}
{{- if .Values.lookup.enabled }}
- name: ICESTREAM_LOOKUP_URL
  value: http://{{ include "icestream.fullname" . }}-lookup:8020
{{ include "icestream.lookupToken" . }}
{{- end }}
{{- if .Values.erasures.enabled }}
{{- range $setting, $key := dict "ICESTREAM_ERASURE_SECRET" .Values.auth.erasureKey "ICESTREAM_RECEIPT_SECRET" .Values.auth.receiptKey }}
- name: {{ $setting }}
  valueFrom:
    secretKeyRef:
      name: {{ $.Values.auth.existingSecret }}
      key: {{ $key }}
{{- end }}
{{- end }}
{{- with .Values.auth.oidc }}
{{- if .issuer }}
- name: ICESTREAM_OIDC_ISSUER
  value: {{ .issuer | quote }}
- name: ICESTREAM_OIDC_AUDIENCE
  value: {{ .audience | quote }}
- name: ICESTREAM_OIDC_ROLES
  value: "{{ range $index, $value := keys .roles | sortAlpha }}{{ if $index }},{{ end }}{{ $value }}={{ get $.Values.auth.oidc.roles $value }}{{ end }}"
- name: ICESTREAM_OIDC_ROLE_CLAIM
  value: {{ .roleClaim | quote }}
- name: ICESTREAM_OIDC_NAME_CLAIM
  value: {{ .nameClaim | quote }}
{{- end }}
{{- end }}
{{- if and .Values.ingress.enabled .Values.ingress.trustedProxies }}
# Only so is it known that a session's cookie travels by TLS, and whose address a failed login has.
- name: ICESTREAM_TRUSTED_PROXIES
  value: {{ join "," .Values.ingress.trustedProxies | quote }}
{{- end }}
- name: ICESTREAM_LOG_REQUESTS
  value: {{ .Values.logs.requests | quote }}
{{ include "icestream.telemetryEnv" . | trim }}
{{- with include "icestream.settings" .Values.service.settings | trim }}
{{ . }}
{{- end }}
{{- end -}}

{{/* What service and workers tell of themselves. */}}
{{- define "icestream.telemetryEnv" -}}
- name: ICESTREAM_LOG_FORMAT
  value: {{ .Values.logs.format }}
{{- with .Values.traces }}
{{- if .endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ .endpoint | quote }}
- name: OTEL_TRACES_SAMPLER
  value: parentbased_traceidratio
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ .sampleRatio | quote }}
{{- with .env }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "icestream.settings" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end -}}

{{/* Spread over nodes and zones, as far as possible, unless values say otherwise. (list $ constraints component) */}}
{{- define "icestream.topologySpread" -}}
{{- $root := first . -}}
topologySpreadConstraints:
{{- with index . 1 }}
  {{- toYaml . | nindent 2 }}
{{- else }}
{{- $component := last . }}
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "icestream.selectorLabels" (list $root $component) | nindent 8 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Where a pod may run. Called with the values of its component. */}}
{{- define "icestream.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* The Deployments of this release, with spaces in between: each has values of its name. */}}
{{- define "icestream.components" -}}
service
{{- if .Values.worker.enabled }} worker{{ end }}
{{- if .Values.lookup.enabled }} lookup{{ end }}
{{- end -}}

{{- define "icestream.sparkOnKubernetes" -}}
{{- and .Values.worker.enabled (eq .Values.worker.spark.mode "kubernetes") | ternary "true" "" -}}
{{- end -}}

{{/* An egress rule: anywhere, or to the given peers, at ports; none without peers. (list rule protocols...) */}}
{{- define "icestream.egress" -}}
{{- $rule := first . -}}
{{- $protocols := rest . -}}
{{- if $rule.to -}}
- ports:
  {{- range $port := $rule.ports }}
  {{- range $protocols }}
    - port: {{ $port }}
      protocol: {{ . }}
  {{- end }}
  {{- end }}
  {{- if not (kindIs "string" $rule.to) }}
  to:
    {{- toYaml $rule.to | nindent 4 }}
  {{- end }}
{{- end -}}
{{- end -}}
