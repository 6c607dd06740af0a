{{/* What all objects are labelled with; given . */}}
{{- define "labels" -}}
app.kubernetes.io/name: ceph-rbd-csi
app.kubernetes.io/part-of: ceph-rbd-csi
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What pods are found by; given a component. */}}
{{- define "selector" -}}
app.kubernetes.io/name: ceph-rbd-csi
app.kubernetes.io/component: {{ . }}
{{- end }}

{{/* Labels of a pod; given a list of . and a component. */}}
{{- define "podLabels" -}}
{{ include "selector" (index . 1) }}
app.kubernetes.io/part-of: ceph-rbd-csi
{{- with (index . 0).Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "nodeAccount" -}}
{{ .Values.serviceAccounts.nodeplugin.name | default "ceph-rbd-csi-node" }}
{{- end }}

{{- define "controllerAccount" -}}
{{ .Values.serviceAccounts.provisioner.name | default "ceph-rbd-csi-controller" }}
{{- end }}

{{- define "image" -}}
image: {{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{/* Arguments that driver containers share. */}}
{{- define "driverArgs" -}}
{{- if .Values.logLevel }}
- --v={{ .Values.logLevel }}
{{- end }}
{{- if ne .Values.logFormat "text" }}
- --log-format={{ .Values.logFormat }}
{{- end }}
{{- with .Values.instanceID }}
- --instanceid={{ . }}
{{- end }}
{{- with .Values.clusterName }}
- --clustername={{ . }}
{{- end }}
{{- with .Values.topology.domainLabels }}
- --domainlabels={{ join "," . }}
{{- end }}
{{- end }}

{{/* Arguments that sidecars share. */}}
{{- define "sidecarArgs" -}}
- --csi-address=/csi/csi.sock
{{- if .Values.sidecarLogLevel }}
- --v={{ .Values.sidecarLogLevel }}
{{- end }}
{{- end }}

{{- define "confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Beside a privileged driver: root, because the sockets are root's, and nothing else. */}}
{{- define "confinedRoot" -}}
runAsUser: 0
{{ include "confined" . }}
seccompProfile:
  type: RuntimeDefault
seLinuxOptions:
  type: spc_t
{{- end }}

{{/* The pod's own address, where the metrics listen. */}}
{{- define "podIP" -}}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- end }}

{{/* What CSIStorageCapacity objects belong to. */}}
{{- define "podName" -}}
- name: NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- end }}

{{/* Given a port, or a map of host and port. */}}
{{- define "probes" -}}
startupProbe:
  httpGet: {{ toJson . }}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 30
livenessProbe:
  httpGet: {{ toJson . }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 5
{{- end }}

{{- define "configMounts" -}}
- name: ceph-csi-config
  mountPath: /etc/ceph-csi-config
  readOnly: true
- name: ceph-config
  mountPath: /etc/ceph
  readOnly: true
- name: ceph-csi-encryption-kms-config
  mountPath: /etc/ceph-csi-encryption-kms-config
  readOnly: true
{{- if .Values.credential.secretName }}
- name: credential
  mountPath: /etc/ceph-csi-key
  readOnly: true
{{- end }}
{{- end }}

{{/* Given a list of . and the mode of the key's file. */}}
{{- define "configVolumes" -}}
{{- with index . 0 -}}
- name: ceph-csi-config
  configMap:
    name: {{ .Values.configMapName }}
- name: ceph-config
  configMap:
    name: {{ .Values.cephConfConfigMapName }}
- name: ceph-csi-encryption-kms-config
  configMap:
    name: {{ .Values.kmsConfigMapName }}
{{- end }}
{{- $mode := index . 1 }}
{{- with (index . 0).Values.credential.secretName }}
- name: credential
  secret:
    secretName: {{ . }}
    defaultMode: {{ $mode }}
{{- end }}
{{- end }}

{{/* Where a pod may run; given .Values.nodeplugin or .Values.provisioner. */}}
{{- define "placing" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
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
{{- end }}

{{/* Objects of a plain file as they are, in the release's namespace; given a list of ., the file and a kind ("" for all). */}}
{{- define "plain" -}}
{{- $root := index . 0 }}
{{- $kind := index . 2 }}
{{- $accounts := dict "ceph-rbd-csi-node" (include "nodeAccount" $root) "ceph-rbd-csi-controller" (include "controllerAccount" $root) }}
{{- range splitList "\n---\n" ($root.Files.Get (index . 1)) }}
{{- $object := fromYaml . }}
{{- if or (not $kind) (eq $kind $object.kind) }}
{{- $labels := merge (fromYaml (include "labels" $root)) ($object.metadata.labels | default dict) }}
{{- $_ := set $object.metadata "labels" $labels }}
{{- if not (hasPrefix "Cluster" $object.kind) }}
{{- $_ := set $object.metadata "namespace" $root.Release.Namespace }}
{{- end }}
{{- range $object.subjects }}
{{- $_ := set . "namespace" $root.Release.Namespace }}
{{- $_ := set . "name" (get $accounts .name | default .name) }}
{{- end }}
{{- if eq $object.kind "ServiceAccount" }}
{{- $_ := set $object.metadata "name" (get $accounts $object.metadata.name | default $object.metadata.name) }}
{{- end }}
---
{{ toYaml $object }}
{{ end }}
{{- end }}
{{- end }}
