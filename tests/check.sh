# shellcheck shell=bash
# Sourced by csc, image, metrics and quota, after driver.sh: facts that are checked and counted, and ports that nobody has.

passed=0
failed=0
answer=

# check NAME PATTERN CMD...: CMD succeeds and its output matches; what it printed stays in $answer.
check() {
    local name=$1 pattern=$2 started=$EPOCHREALTIME result=ok
    shift 2
    answer=$("$@" 2>&1) || result="exit code $?"
    [[ $result != ok || $answer =~ $pattern ]] || result="does not match $pattern"
    if [[ $result == ok ]]; then
        passed=$((passed + 1))
        printf '  ok      %-58s %5d ms\n' "$name" $(($(microseconds "$started" "$EPOCHREALTIME") / 1000))
    else
        failed=$((failed + 1))
        printf '  FAILED  %s: %s\n%s\n' "$name" "$result" "$answer"
    fi
}

# For what has to fail, and say why.
refused() {
    if "$@" 2>&1; then
        echo "it was not refused"
        return 1
    fi
}

# The last line, which tests/all reads.
tell_counts() {
    ((failed == 0)) || show_log
    echo "${0##*/}: $passed passed, $failed failed"
    ((failed == 0))
}

port_is_taken() {
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# free_port FIRST: it, or the next one that nobody has.
free_port() {
    local candidate=$1
    while port_is_taken "$candidate"; do
        candidate=$((candidate + 1))
    done
    ((candidate == $1)) || echo "port $1 is taken: $candidate takes its place" >&2
    echo "$candidate"
}
