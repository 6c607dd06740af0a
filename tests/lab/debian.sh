# shellcheck shell=bash disable=SC2034,SC2154 # they bring $log and use $release
# Sourced by ceph-18 and image, which bring `die` and $log: where Debian 13 comes from.

readonly release=trixie
readonly keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# What it says is of interest only when it fails.
quietly() {
    "$@" </dev/null >"$log" 2>&1 || { tail -n 20 "$log" >&2 && die "$1 failed"; }
}

# The mirror that this machine's own packages come from.
known_mirror() {
    apt-get indextargets --format "\$(ORIGIN) \$(CODENAME) \$(REPO_URI)" 'Created-By: Packages' |
        awk '$1 == "Debian" && $2 !~ /-/ && !found++ { print $3 }'
}

# What apt knows of its sources it has from their lists, which a machine may have thrown away.
mirror() {
    local found=${LAB_MIRROR-}
    [[ -r $keyring ]] || die "$keyring is missing: install debian-archive-keyring"
    [[ $found ]] || found=$(known_mirror)
    if [[ ! $found ]]; then
        quietly apt-get -qq update
        found=$(known_mirror)
    fi
    [[ $found ]] || die "apt knows no Debian mirror here: name one in LAB_MIRROR"
    echo "$found"
}
