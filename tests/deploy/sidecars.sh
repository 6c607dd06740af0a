# shellcheck shell=bash
# Sourced by run: the real sidecars of the controller, with the arguments of deploy/base, the rights of its service
# account, and the driver. There is no Ceph: the driver names a cluster that it does not know, and that message
# has to come back to each object that a user looks at. So each sidecar has started, led, read all that it reads,
# called the driver, and written what it writes.

sidecars() {
    local name
    start_driver
    for name in provisioner attacher resizer snapshotter; do
        start_sidecar "$name"
    done
    kubectl create -f "$here/objects.yaml" >/dev/null
    bind grown
    fact "a claim comes to the driver" await told_of_claim made ProvisioningFailed
    fact "an attachment comes to the driver" await told_in volumeattachment attached '{.status.attachError.message}'
    fact "a growth comes to the driver" await told_of_claim grown VolumeResizeFailed
    fact "a snapshot comes to the driver" await told_in volumesnapshotcontent taken '{.status.error.message}'
    fact "no sidecar was denied anything" none_denied
}

# What Kubernetes' own controller does, which is not here.
bind() {
    local uid
    uid=$(kubectl get persistentvolumeclaim "$1" --namespace storage --output 'jsonpath={.metadata.uid}')
    kubectl patch persistentvolume "$1" --type merge --patch "{\"spec\": {\"claimRef\": {\"uid\": \"$uid\"}}}"
    kubectl patch persistentvolumeclaim "$1" --namespace storage --subresource status --type merge \
        --patch '{"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}'
} >/dev/null

# arguments CONTAINER: one in a line, as deploy/base has them, with the socket in our folder.
arguments() {
    kubectl --namespace ceph-rbd-csi get deployment ceph-rbd-csi-controller --output json |
        jq -r --arg name "$1" '.spec.template.spec.containers[] | select(.name == $name) | .args[]' |
        sed "s|/csi/csi.sock|$KUBE_DIR/csi.sock|"
}

start_driver() {
    local args
    mapfile -t args < <(arguments ceph-rbd-csi)
    echo '[]' >"$KUBE_DIR/config.json"
    "$driver" "${args[@]}" --config "$KUBE_DIR/config.json" >"$KUBE_DIR/driver.log" 2>&1 &
}

start_sidecar() {
    local args account=$KUBE_DIR/account
    mapfile -t args < <(arguments "csi-$1")
    jq --arg token "$(kubectl --namespace ceph-rbd-csi create token ceph-rbd-csi-controller)" \
        '.users[0].user.token = $token' "$KUBECONFIG" >"$account"
    "csi-$1" "${args[@]}" --kubeconfig "$account" --leader-election-namespace ceph-rbd-csi >"$KUBE_DIR/csi-$1.log" 2>&1 &
}

await() {
    for _ in {1..300}; do
        "$@" >/dev/null 2>&1 && return
        sleep 0.2
    done
    tail -n 5 "$KUBE_DIR"/csi-*.log "$KUBE_DIR/driver.log"
    return 1
}

# The snapshotter looks for group snapshots, which the driver does not make, and does without.
none_denied() {
    grep -hiE 'forbidden|cannot (get|list|watch|create|update|patch)' "$KUBE_DIR"/csi-*.log >"$KUBE_DIR/denied" || true
    sed -i '/VolumeGroupSnapshot CRDs were not found/d' "$KUBE_DIR/denied"
    cat "$KUBE_DIR/denied"
    [[ ! -s $KUBE_DIR/denied ]]
}

told_of_claim() {
    kubectl --namespace storage get events --field-selector "involvedObject.name=$1,reason=$2" --output json |
        jq -r '.items[].message' | grep nowhere
}

told_in() {
    kubectl get "$1" "$2" --output jsonpath="$3" | grep nowhere
}
