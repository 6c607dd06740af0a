# shellcheck shell=bash disable=SC2154 # $work is driver.sh's
# Sourced by demo and demo-local, after driver.sh: a volume's life as steps, each with its time and with what it brought
# and took. They bring `observe`, which prints what there is to see, "KIND<tab>TEXT" on each line.

answer=
state=
declare -A short=() # what is shown in place of a long text, once that was shown in full

# --- Looks -------------------------------------------------------------------------------------

if [[ -t 1 && -z ${NO_COLOR-} ]]; then
    readonly bold=$'\e[1m' dim=$'\e[2m' green=$'\e[32m' red=$'\e[31m' plain=$'\e[0m'
else
    readonly bold='' dim='' green='' red='' plain=''
fi

title() {
    printf '\n%s%s%s\n\n' "$bold" "$1" "$plain"
}

fact() {
    printf '  %s%-10s%s %s\n' "$bold" "$1" "$plain" "$2"
}

# Our folder is in nearly every line.
shorten() {
    local long script="s|$work/||g"
    for long in "${!short[@]}"; do
        script+=";s|$long|${short[$long]}|g"
    done
    sed -e "$script"
}

# --- What there is to see on any node ------------------------------------------------------------

# Mounts, stashes, and what pods (whose folders are called pod…) have written.
observe_node() {
    local pod
    findmnt --noheadings --list --output TARGET,FSTYPE,SOURCE | grep -F "$work/" |
        awk '{print "mount\t" $1 "  " $2 " of " $3}' || true
    find "$work" -xdev -name image-meta.json -printf 'stash\t%p  %s bytes\n'
    for pod in "$work"/pod*; do
        [[ ! -d $pod ]] || find "$pod" -maxdepth 1 -name '*.txt' -printf 'file\t%p  %s bytes\n'
    done
}

# --- Steps -------------------------------------------------------------------------------------

# step NAME EXPECTED CMD...: runs CMD, shows its time and what came (+) and went (-). It fails when
# CMD does, or when EXPECTED, a pattern, is in nothing that came, went or was answered.
step() {
    local name=$1 expected=$2 started=$EPOCHREALTIME code=0 before=$state changes
    shift 2
    answer=$("$@" 2>"$work/stderr") || code=$?
    printf '\n  %s%-34s%s%6d ms\n' "$bold" "$name" "$plain" \
        $(($(microseconds "$started" "$EPOCHREALTIME") / 1000))
    ((code == 0)) || failed "$name" "$(code_name "$code")$(head -n 1 "$work/stderr")"
    state=$(observe)
    changes=$(lines_not_in "$before" + "$state" && lines_not_in "$state" - "$before")
    show_changes "$changes"
    [[ $changes$'\n'$answer =~ $expected ]] || failed "$name" "it answered, but $expected is not to be seen"
}

lines_not_in() {
    grep -vxF -f <(echo "$1") <<<"$3" | sed "s/^/$2\t/" || true
}

show_changes() {
    local sign what rest colour
    while IFS=$'\t' read -r sign what rest; do
        [[ $what ]] || continue
        [[ $sign == + ]] && colour=$green || colour=$red
        printf '    %s%s %-9s%s %s\n' "$colour" "$sign" "$what" "$plain" "$(shorten <<<"$rest")"
    done <<<"$1"
}

says() {
    printf '    %s=%s %-9s %s\n' "$dim" "$plain" "$1" "$(shorten <<<"$2")"
}

# Of what csc answers to NodeGetVolumeStats.
says_usage() {
    says usage "$(awk '{print $(NF-3) " free of " $(NF-2) ", " $(NF-1) " used (" tolower($NF) ")"}' \
        <<<"$answer" | paste -sd ';' | sed 's/;/; /')"
}

# csc's exit code is the number of the gRPC code; 1 is also what csc says of itself.
code_name() {
    local names=(OK '' UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS
        PERMISSION_DENIED RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED
        INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED)
    [[ -z ${names[$1]-} ]] || echo "${names[$1]}: "
}

failed() {
    printf '\n  %s%s failed%s: %s\n\n' "$red" "$1" "$plain" "$2" >&2
    show_log
    exit 1
}
