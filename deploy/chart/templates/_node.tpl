{{/* What the drivers of both backends mount on a node. */}}
{{- define "nodeMounts" -}}
- name: socket
  mountPath: /csi
- name: staging
  mountPath: {{ .Values.kubeletDir }}/plugins
  mountPropagation: Bidirectional
- name: pods
  mountPath: {{ .Values.kubeletDir }}/pods
  mountPropagation: Bidirectional
- name: dev
  mountPath: /dev
{{- end }}

{{/* Given a list of . and the driver's name. */}}
{{- define "nodeVolumes" -}}
{{- $kubelet := (index . 0).Values.kubeletDir -}}
- name: socket
  hostPath:
    path: {{ $kubelet }}/plugins/{{ index . 1 }}
    type: DirectoryOrCreate
- name: registration
  hostPath:
    path: {{ $kubelet }}/plugins_registry
    type: Directory
- name: staging
  hostPath:
    path: {{ $kubelet }}/plugins
    type: Directory
- name: pods
  hostPath:
    path: {{ $kubelet }}/pods
    type: DirectoryOrCreate
- name: dev
  hostPath:
    path: /dev
    type: Directory
{{- end }}

{{/* Tells kubelet of the driver; given a list of . and the driver's name. */}}
{{- define "registrar" -}}
{{- $root := index . 0 -}}
- name: registrar
  image: {{ $root.Values.sidecarRegistry }}/csi-node-driver-registrar:{{ $root.Values.nodeplugin.registrar.tag }}
  args:
    {{- include "sidecarArgs" $root | nindent 4 }}
    - --kubelet-registration-path={{ $root.Values.kubeletDir }}/plugins/{{ index . 1 }}/csi.sock
  resources:
    {{- toYaml $root.Values.nodeplugin.registrar.resources | nindent 4 }}
  securityContext:
    {{- include "confinedRoot" . | nindent 4 }}
  volumeMounts:
    - name: socket
      mountPath: /csi
    - name: registration
      mountPath: /registration
{{- end }}

{{/* Asks the driver for kubelet; given a list of . and where it listens. */}}
{{- define "nodeLiveness" -}}
{{- $root := index . 0 -}}
- name: liveness
  image: {{ $root.Values.sidecarRegistry }}/livenessprobe:{{ $root.Values.liveness.tag }}
  args:
    {{- include "sidecarArgs" $root | nindent 4 }}
    - --http-endpoint={{ index . 1 }}
  resources:
    {{- toYaml $root.Values.nodeplugin.liveness.resources | nindent 4 }}
  securityContext:
    {{- include "confinedRoot" . | nindent 4 }}
  volumeMounts:
    - name: socket
      mountPath: /csi
{{- end }}
