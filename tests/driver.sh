# shellcheck shell=bash
# Sourced by sanity, csc, demo, demo-local, quota, image, bench and bench-local: a folder of their own, the
# driver in it (on the lab's cluster, inside `tests/lab/ceph with`, or on a folder of this machine), csc
# as its client, and their end.
# Env: DRIVER, the binary to run (the release build, else the debug build).

root=$(readlink -f "${BASH_SOURCE[0]%/*}/..")
readonly root
readonly cluster_id=lab node_id=lab-node
work=
driver_pid=
driver_type=() # what it serves, by make_work or make_local_work
driver_command=() # what starts it, where that is not its binary
driver_flags=()
mapper=

die() {
    echo "${0##*/}: $*" >&2
    exit 1
}

cannot() {
    die "cannot run here: $*"
}

in_lab() {
    [[ ${LAB_DIR-} && -e $LAB_DIR/csi.key ]] || die "run this as: tests/lab/ceph with $0"
    await_pool
}

# The driver knows pools by `rados df`, which prints what the manager reported: in a cluster of this
# minute, nothing yet.
await_pool() {
    for _ in {1..100}; do
        rados df --format json | jq -e '.pools | any(.name == "rbd")' >/dev/null && return
        sleep 0.1
    done
    die "the cluster's manager does not report the pool rbd"
}

pick_driver() {
    local path
    for path in "${DRIVER-}" "$root/target/release/ceph-rbd-csi" "$root/target/debug/ceph-rbd-csi"; do
        [[ $path && -x $path ]] && readlink -f "$path" && return
    done
    die "no driver is built: cargo build"
}

# For what `make` runs by itself: a binary that was named is taken as it is.
build_driver() {
    [[ -z ${DRIVER-} ]] || return 0
    echo "building the driver (the first time takes some minutes)"
    (cd "$root" && PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin cargo build --release --quiet)
}

may_mount() {
    unshare --mount mount -t tmpfs none /mnt 2>/dev/null
}

# For scripts that try the embedded backend on filesystems of their own.
check_local_machine() {
    local free
    ((EUID == 0)) || cannot "it makes loop devices and mounts: run it as root"
    may_mount || cannot "this root may not mount (a container that is not privileged?)"
    modprobe --all loop xfs 2>/dev/null || true
    losetup --find >/dev/null 2>&1 || cannot "there are no loop devices (/dev/loop-control)"
    grep -qw xfs /proc/filesystems || cannot "this kernel has no xfs"
    free=$(df --output=avail --block-size=1M "${TMPDIR:-/var/tmp}" | tail -n 1)
    ((free > 1000)) ||
        cannot "less than 1 GB free in ${TMPDIR:-/var/tmp}, where the volumes lie (set TMPDIR)"
}

has_krbd() {
    modprobe rbd 2>/dev/null || true
    [[ -w /sys/bus/rbd/add_single_major || -w /sys/bus/rbd/add ]]
}

leave_stand_in() {
    PATH=${PATH//"$root/tests/lab/bin:"/}
}

# The kernel's own mapper where there is one; its name is left in $mapper.
# shellcheck disable=SC2034 # read by the scripts that source this
choose_mapper() {
    mapper="the stand-in: this kernel has no rbd module (qemu-storage-daemon, FUSE, a loop device)"
    has_krbd || return 0
    mapper="krbd, the kernel's own"
    leave_stand_in
}

# On tmpfs, because a client's secrets file comes here: the key of a cluster never reaches a disk.
make_work() {
    local parent
    for parent in /dev/shm "${XDG_RUNTIME_DIR:-/run}"; do
        [[ -w $parent && $(stat --file-system --format=%T "$parent") == tmpfs ]] || continue
        work=$(mktemp -d "$parent/ceph-rbd-csi.XXXXXX")
        write_config
        return
    done
    die "neither /dev/shm nor /run is a tmpfs that can be written: the secrets file has no safe place"
}

# For the embedded backend: no cluster, no secret, and a root on a disk, where volumes live.
make_local_work() {
    work=$(readlink -f "$(mktemp -d "${TMPDIR:-/var/tmp}/ceph-rbd-csi.XXXXXX")")
    mkdir "$work/root"
    driver_type=(--type=local --local-root="$work/root")
    CSI_ENDPOINT=unix://$work/csi.sock
    X_CSI_SECRETS=
}

# A disk of its own for the root: a sparse file, so that what is tested does not depend on the
# filesystem of this machine.
make_disk() {
    truncate --size=8G "$work/disk"
    case $1 in
    ext4) mkfs.ext4 -q "$work/disk" ;;
    xfs) mkfs.xfs -q -m reflink=1 "$work/disk" ;;
    esac
    mount -o loop "$work/disk" "$work/root"
}

# The first word of the monitors' file is all that the driver has to know about the cluster.
write_config() {
    local monitors
    monitors=$(<"$LAB_DIR/monitors")
    printf '[{"clusterID": "%s", "monitors": ["%s"]}]\n' "$cluster_id" "$monitors" >"$work/config.json"
    driver_type=(--type=rbd --config="$work/config.json")
    CSI_ENDPOINT=unix://$work/csi.sock
    X_CSI_SECRETS="userID=csi,userKey=$(<"$LAB_DIR/csi.key")"
}

# What was asked of the driver is known to its client only: the driver itself gets neither variable.
start_driver() {
    local driver
    driver=$(pick_driver)
    env --unset=CSI_ENDPOINT "${driver_command[@]:-$driver}" "${driver_type[@]}" --endpoint="$CSI_ENDPOINT" \
        --nodeid="$node_id" "${driver_flags[@]}" >>"$work/driver.log" 2>&1 &
    driver_pid=$!
}

# Prints what Probe answers, as soon as it is true.
await_probe() {
    local ready
    for _ in {1..100}; do
        ready=$(csc identity probe 2>&1) && [[ $ready == true ]] && break
        kill -0 "$driver_pid" 2>/dev/null || break
        sleep 0.05
    done
    echo "$ready"
    [[ $ready == true ]]
}

await_driver() {
    local ready
    ready=$(await_probe) && return
    show_log
    die "the driver does not serve $CSI_ENDPOINT: $ready"
}

# SIGTERM drains the driver; one that has not gone after its grace is a finding, told and ended.
stop_driver() {
    local pid=$driver_pid
    driver_pid=
    [[ $pid ]] || return 0
    kill -TERM "$pid" 2>/dev/null || true
    for _ in {1..300}; do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    if kill -KILL "$pid" 2>/dev/null; then
        echo "the driver did not end within 30 s of SIGTERM and was killed" >&2
    fi
    wait "$pid" 2>/dev/null || true
}

# Between two values of EPOCHREALTIME, whose decimal mark depends on the locale.
microseconds() {
    echo $((${2//[!0-9]/} - ${1//[!0-9]/}))
}

# Secrets go to csc alone, and through the environment: a command line can be read by everybody.
csc() {
    CSI_ENDPOINT=$CSI_ENDPOINT X_CSI_SECRETS=$X_CSI_SECRETS "$root/target/tools/csc" "$@"
}

# csc answers CreateVolume with "id", size and the volume context as "key"="value", separated by tabs,
# and CreateSnapshot likewise.
id_of() {
    cut -d '"' -f 2 <<<"$1"
}

# The context as csc takes it: key=value,….
context_of() {
    cut -f 3- <<<"$1" | tr -d '"' | sed 's/\t*$//; s/\t/,/g'
}

show_log() {
    [[ -s $work/driver.log ]] || return 0
    echo "the driver's last log lines:" >&2
    tail -n 15 "$work/driver.log" | sed 's/^/  | /' >&2
}

# Mounts below our folder, innermost first.
our_mounts() {
    findmnt --noheadings --list --output TARGET | grep -F "$work/" | tac || true
}

# Loop devices whose file is below a folder, and that file.
loops_below() {
    losetup --list --noheadings --raw --output NAME,BACK-FILE 2>/dev/null |
        awk -v below="$1/" 'index($2, below) == 1'
}

detach_below() {
    local device
    while read -r device _; do
        losetup --detach "$device" || true
    done < <(loops_below "$1")
}

# Unmounted before anything is removed: what is below a mount belongs to a volume.
clean_work() {
    local place
    [[ $work && -d $work ]] || return 0
    while read -r place; do
        # A driver killed in the midst of a copy leaves it frozen, and nothing frozen goes away.
        fsfreeze --unfreeze "$place" 2>/dev/null || true
        detach_below "$place"
        umount "$place" || umount --lazy "$place"
    done < <(our_mounts)
    detach_below "$work"
    rm -rf --one-file-system "$work"
}
