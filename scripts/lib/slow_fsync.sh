# shellcheck shell=bash
#
# Starts a PostgreSQL with a slower disk; sourced by scripts/bench after scripts/lib/servers.sh.

# Like start_postgres, but each fsync and fdatasync of the server takes this much longer, such as 2ms or
# 500us. The settings fsync and synchronous_commit stay on.
start_slow_postgres() {
    local number=${1%[mu]s} unit=${1##*[0-9]} microseconds library
    [[ $number =~ ^[0-9]+$ && ($unit == ms || $unit == us) ]] || die "\`$1\` is not a time; write it as in 2ms or 500us"
    microseconds=$number
    [[ $unit == ms ]] && microseconds=$((number * 1000))
    command -v cc >/dev/null || die 'cc is not installed, which compiles scripts/lib/slow_fsync.c'
    # The server's user must be able to read the library.
    library=$(mktemp "${TMPDIR:-/tmp}/slow_fsync-XXXXXX.so")
    slow_fsync_library=$library
    cleanups+=(remove_slow_fsync)
    cc -O2 -shared -fPIC -o target/slow_fsync.so scripts/lib/slow_fsync.c -ldl
    install -m 755 target/slow_fsync.so "$library"
    export LD_PRELOAD=$library SLOW_FSYNC_US=$microseconds
    start_postgres
    unset LD_PRELOAD SLOW_FSYNC_US
    grep -q "$library" "/proc/$postgres_pid/maps" || die 'PostgreSQL did not load scripts/lib/slow_fsync.c'
    say "each fsync of PostgreSQL takes $1 longer"
}

slow_fsync_library=

remove_slow_fsync() {
    [[ $slow_fsync_library ]] && rm -f -- "$slow_fsync_library"
    slow_fsync_library=
}
