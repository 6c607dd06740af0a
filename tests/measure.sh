# shellcheck shell=bash disable=SC2154 # $work, $root and $driver_pid are driver.sh's
# Sourced by bench and bench-local, after driver.sh: time and memory, medians, ratios, and rows of them.
# Env: BENCH_COUNT, creates and deletes for the memory figure (1000); BENCH_ROUNDS (7)

# shellcheck disable=SC2034 # read by the scripts that source this
readonly count=${BENCH_COUNT:-1000} rounds=${BENCH_ROUNDS:-7}
took=     # microseconds, by timed
csc_cost= # the same, by measure_csc

# --- Output and arithmetic ---------------------------------------------------------------------

title() {
    printf '\n%s\n' "$1"
}

row() {
    if (($# == 1)); then
        printf '  %s\n' "$1"
    else
        printf '  %-70s %10s  %s\n' "$1" "$2" "${3-}"
    fi
}

median() {
    sort -n | awk '{ v[NR] = $1 } END { print (NR % 2) ? v[(NR + 1) / 2] : int((v[NR / 2] + v[NR / 2 + 1]) / 2) }'
}

ms() {
    awk -v us="$1" 'BEGIN { printf "%.1f ms", us / 1000 }'
}

times() {
    awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f x", a / b }'
}

megabytes() {
    awk -v bytes="$1" 'BEGIN { printf "%.1f MB", bytes / 1e6 }'
}

# --- Time --------------------------------------------------------------------------------------

# timed CMD...: microseconds that CMD took, in $took.
timed() {
    local started=$EPOCHREALTIME
    "$@" >"$work/out" 2>"$work/err" || die "$* failed: $(head -n 3 "$work/err")"
    took=$(microseconds "$started" "$EPOCHREALTIME")
}

# record KIND CMD...: timed, and kept for the median of its kind.
record() {
    timed "${@:2}"
    echo "$took" >>"$work/t.$1"
}

median_of() {
    median <"$work/t.$1"
}

measure_csc() {
    local i
    for ((i = 0; i < 15; i++)); do
        record csc csc identity probe
    done
    csc_cost=$(median_of csc)
}

# without_csc TIME [STARTS]: a time without the starts of csc that are in it. Noise may leave nothing,
# and nothing cannot be divided by.
without_csc() {
    local rest=$(($1 - ${2:-1} * csc_cost))
    echo $((rest > 1 ? rest : 1))
}

# --- Calls that both backends are asked -----------------------------------------------------------

# Of the volume that csc has just made: $volume and $context.
# shellcheck disable=SC2034 # read by the scripts that source this
created() {
    volume=$(id_of "$(<"$work/out")")
    context=$(context_of "$(<"$work/out")")
}

stage_and_publish() {
    csc node stage --cap 1,mount,ext4 --vol-context "$context" --staging-target-path "$work/staging" "$volume" &&
        csc node publish --cap 1,mount,ext4 --vol-context "$context" --staging-target-path "$work/staging" \
            --target-path "$work/pod" "$volume"
}

unpublish_and_unstage() {
    csc node unpublish --target-path "$work/pod" "$volume" &&
        csc node unstage --staging-target-path "$work/staging" "$volume"
}

# --- Start and memory ----------------------------------------------------------------------------

# From exec until the socket is there, in a tight loop, and then the first Probe at once: what that
# takes longer than a Probe of a driver that has long been serving is part of the start too.
start_once() {
    local started=$EPOCHREALTIME socket
    start_driver
    until [[ -S $work/csi.sock ]]; do :; done
    socket=$EPOCHREALTIME
    timed csc identity probe
    [[ $(<"$work/out") == true ]] || die "the first Probe was not answered with true"
    echo $(($(microseconds "$started" "$socket") + (took > csc_cost ? took - csc_cost : 0))) >>"$work/t.start"
    stop_driver
}

# row_of_starts WHAT: leaves no driver running.
row_of_starts() {
    local i
    stop_driver
    for i in {1..9}; do
        start_once
    done
    row "from exec to a served Probe$1 (median of 9)" "$(ms "$(median_of start)")"
}

memory() {
    awk -v key="$1:" '$1 == key { printf "%.1f MB", $2 * 1024 / 1e6 }' "/proc/$driver_pid/status"
}

# One worker of eight: makes its volumes and deletes them, by two calls of csc.
# shellcheck disable=SC2016 # expanded by the inner shell
readonly worker='set -o pipefail
ids=$("$CSC" controller new --cap 1,mount,ext4 --req-bytes 67108864 --params "$PARAMS" "$@" | cut -d "\"" -f 2)
"$CSC" controller del $ids >/dev/null'

many_volumes() {
    seq -f 'many-%.0f' "$count" | CSI_ENDPOINT=$CSI_ENDPOINT X_CSI_SECRETS=$X_CSI_SECRETS \
        CSC=$root/target/tools/csc PARAMS=$1 xargs -P 8 -n 20 bash -c "$worker" worker
}

# bench_memory PARAMS: of a driver that has just been started.
bench_memory() {
    local before
    before=$(memory VmRSS)
    echo "(making and deleting $count volumes)" >&2
    timed many_volumes "$1"
    title "Memory of the driver, its children apart"
    row 'resident after the start' "$before"
    row "resident after $count creates and $count deletes, 8 clients at once" "$(memory VmRSS)" \
        "peak $(memory VmHWM)"
    row 'these took' "$(awk -v us="$took" 'BEGIN { printf "%.1f s", us / 1e6 }')" \
        "$(awk -v us="$took" -v n="$count" 'BEGIN { printf "%.0f volumes made and deleted per second", n / (us / 1e6) }')"
}

# --- Before and after ----------------------------------------------------------------------------

restart_driver() {
    stop_driver
    start_driver
    await_driver
}

finish() {
    local code=$?
    trap '' INT TERM HUP
    ((code == 0)) || show_log
    stop_driver
    clean_work
    exit "$code"
}

# Whatever is made from here on goes with this process.
clean_at_the_end() {
    umask 077
    trap finish EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
}
