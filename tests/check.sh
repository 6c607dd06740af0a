# shellcheck shell=bash
# Sourced by csc, quota and image, after driver.sh: facts that are checked and counted.

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
