# shellcheck shell=bash
#
# Finds, installs and starts the servers for tests and benchmarks. scripts/test, scripts/bench and
# scripts/chaos source it in the root of the repository. Each server has:
#
#   find_<server>      succeeds when the server is on this machine
#   install_<server>   installs it, or sets missing_because and fails
#   start_<server>     starts it if it is a process of its own, tells tests of it by an exported variable, and adds
#                      to `cleanups` a function that stops it; ends the script if the server does not start

# shellcheck source=scripts/lib/node.sh
source scripts/lib/node.sh
# shellcheck source=scripts/lib/python.sh
source scripts/lib/python.sh
# shellcheck source=scripts/lib/deploy.sh
source scripts/lib/deploy.sh

missing_because= # why the latest install_<server> failed
cleanups=()      # functions that undo what was done, called in reverse order

say() {
    printf 'scripts/%s: %s\n' "${0##*/}" "$*"
}

die() {
    say "$@" >&2
    exit 1
}

stop_servers() {
    local i
    for ((i = ${#cleanups[@]} - 1; i >= 0; i--)); do
        "${cleanups[i]}"
    done
    cleanups=()
}

# --- Installing ---------------------------------------------------------------------------------------------------

apt_updated=

# Whether this script may install Debian packages.
may_install() {
    if ((EUID != 0)); then
        missing_because="$* is not installed, and only root may install it (apt-get install $*)"
        return 1
    fi
    if ! command -v apt-get >/dev/null; then
        missing_because="$* is not installed, and there is no apt-get to install it with"
        return 1
    fi
}

# Installs Debian packages.
apt_install() {
    may_install "$@" || return
    say "installing $*"
    local log
    log=$(mktemp target/apt-XXXXXX.log)
    # Another apt-get may be running: wait for it, up to a time limit.
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
    if [[ ! $apt_updated ]]; then
        apt_updated=yes
        # If this fails, the existing package lists may be enough.
        "${apt[@]}" update </dev/null >>"$log" 2>&1 || true
    fi
    local status=0
    "${apt[@]}" install --yes --no-install-recommends "$@" </dev/null >>"$log" 2>&1 || status=$?
    if ((status)); then
        missing_because="apt-get install $* failed with exit status $status"
        say "$missing_because:"
        tail -n 20 "$log"
    fi
    rm -f "$log"
    return "$status"
}

service_policy=/usr/sbin/policy-rc.d

# Installs Debian packages without starting their services, which no test uses. Only this policy file prevents
# the start.
apt_install_without_services() {
    may_install "$@" || return
    cleanups+=(restore_service_policy)
    restore_service_policy
    [[ -e $service_policy ]] && mv "$service_policy" "$service_policy.scripts-test"
    printf '#!/bin/sh\n# scripts/test\nexit 101\n' >"$service_policy"
    chmod +x "$service_policy"
    local status=0
    apt_install "$@" || status=$?
    restore_service_policy
    return "$status"
}

# Also repairs the state after a run that was killed during an installation.
restore_service_policy() {
    grep -qs '^# scripts/test$' "$service_policy" && rm -f "$service_policy"
    [[ -e $service_policy.scripts-test ]] && mv "$service_policy.scripts-test" "$service_policy"
    return 0
}

# --- Processes ----------------------------------------------------------------------------------------------------

started= # process id of the latest start_process

# Starts a command in the background, in its own session. A Ctrl-C at the terminal then reaches only this
# script, which ends its processes in the right order. A command that starts with `setpriv --pdeathsig SIGNAL`
# gets that signal from the kernel if this script is killed by SIGKILL.
start_process() {
    (
        # bash makes background commands ignore these two signals, and a test runner would pass that on to the
        # tests.
        trap - INT QUIT
        # The process is not a group leader, so setsid does not fork, and the process id stays the same.
        exec setsid "$@"
    ) </dev/null &
    started=$!
}

# Ends a process of start_process: sends signal $2, and SIGKILL if the process still runs after ten seconds.
# Suppresses bash's message about the killed process.
end_process() {
    local pid=$1 signal=$2 tries=0
    kill -s "$signal" "$pid"
    while kill -0 "$pid" && ((tries++ < 100)); do
        sleep 0.1
    done
    kill -s KILL "$pid"
    wait "$pid"
} 2>/dev/null

# --- PostgreSQL ---------------------------------------------------------------------------------------------------

postgres_bin=     # folder of the newest installed version
postgres_folder=  # of the server that was started here: its data and its log
postgres_pid=
postgres_as=()    # command prefix that changes to the user that the server runs as

find_postgres() {
    postgres_bin=$(
        shopt -s nullglob
        for folder in /usr/lib/postgresql/*/bin; do
            [[ -x $folder/initdb && -x $folder/postgres ]] && printf '%s\n' "$folder"
        done | sort -V | tail -n 1
    )
    [[ $postgres_bin ]]
}

install_postgres() {
    may_install postgresql || return
    apt_install postgresql-common || return
    # The server's package would also create a cluster and start it as a service, which no test uses.
    cleanups+=(restore_createcluster)
    echo 'create_main_cluster = false # scripts/test' >>/etc/postgresql-common/createcluster.conf
    local status=0
    apt_install postgresql || status=$?
    restore_createcluster
    return "$status"
}

restore_createcluster() {
    sed -i '/# scripts\/test$/d' /etc/postgresql-common/createcluster.conf
}

# Creates an empty cluster, starts a server for it and exports TEST_POSTGRES_URL and PGBENCH. Also exports
# POSTGRES_BIN, for tests that start and stop their own server.
start_postgres() {
    if ((EUID == 0)); then
        # PostgreSQL refuses to run as root.
        id -u postgres >/dev/null 2>&1 || die 'PostgreSQL is installed, but there is no user "postgres" to run it as'
        postgres_as=(setpriv "--reuid=$(id -u postgres)" "--regid=$(id -g postgres)" --init-groups --)
    fi
    export POSTGRES_BIN=$postgres_bin
    postgres_create_folder
    local data=$postgres_folder/data log=$postgres_folder/log

    # env -C is needed because the server's user may have no access to the current folder. --no-sync is safe:
    # it matters only if the whole machine crashes while the cluster is created.
    "${postgres_as[@]}" env -C "$postgres_folder" "$postgres_bin/initdb" --pgdata="$data" --username=postgres \
        --auth=trust --encoding=UTF8 --locale=C.UTF-8 --no-sync >"$log" 2>&1 || postgres_failed 'initdb failed'
    # fsync stays on, because tests kill processes, and committed data must survive. There is no Unix socket:
    # its path may have at most 107 bytes, and a clone in a deep folder exceeds that.
    cat >>"$data/postgresql.conf" <<'END'
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 300
fsync = on
END
    echo 'host all all 127.0.0.1/32 trust' >"$data/pg_hba.conf"

    # A port that was free a moment ago may be taken now, so the only reliable check is to use it. The kernel
    # gives ports from 32768 on to outgoing connections.
    local port tries
    for ((tries = 0; tries < 20; tries++)); do
        port=$((16384 + RANDOM % 16384))
        : >"$log"
        if postgres_try_port "$port"; then
            export TEST_POSTGRES_URL=postgres://postgres@127.0.0.1:$port/postgres PGBENCH=$postgres_bin/pgbench
            say "PostgreSQL $(cat "$data/PG_VERSION") on 127.0.0.1:$port, data in ${postgres_folder#"$PWD/"}"
            return
        fi
        grep -q 'could not create any TCP/IP sockets' "$log" || break
    done
    postgres_failed 'PostgreSQL did not start'
}

# Creates the folder for a new cluster. The server's user must have access to it.
postgres_create_folder() {
    mkdir -p target/test-servers
    cleanups+=(stop_postgres)
    postgres_folder=$(mktemp -d "$PWD/target/test-servers/postgres-$$-XXXXXX")
    ((EUID == 0)) || return 0
    chown postgres: "$postgres_folder"
    if ! "${postgres_as[@]}" test -w "$postgres_folder"; then
        rmdir "$postgres_folder"
        postgres_folder=$(mktemp -d "/tmp/greenroom-postgres-$$-XXXXXX")
        chown postgres: "$postgres_folder"
        say "the user \"postgres\" cannot reach $PWD/target: using $postgres_folder"
    fi
}

# Starts the server on a port and waits until it accepts connections. Fails if the server ends before that.
postgres_try_port() {
    local data=$postgres_folder/data tries
    # --pdeathsig comes after the change of user, which would clear it.
    start_process "${postgres_as[@]}" env -C "$postgres_folder" setpriv --pdeathsig QUIT -- \
        "$postgres_bin/postgres" -D "$data" -p "$1" >>"$postgres_folder/log" 2>&1
    postgres_pid=$started
    for ((tries = 0; tries < 600; tries++)); do
        # Line 8 of this file is the state of this server. A connection could reach another server on the same
        # port.
        [[ $(sed -n 8p "$data/postmaster.pid" 2>/dev/null) == ready* ]] && return
        kill -0 "$postgres_pid" 2>/dev/null || break
        sleep 0.1
    done
    end_process "$postgres_pid" QUIT || true
    postgres_pid=
    return 1
}

postgres_failed() {
    say "$1; its log:"
    cat "$postgres_folder/log" || true
    exit 1
}

stop_postgres() {
    # SIGQUIT ends it at once, without writing data that is about to be removed.
    [[ $postgres_pid ]] && end_process "$postgres_pid" QUIT
    [[ $postgres_folder ]] && rm -rf -- "$postgres_folder"
    postgres_pid=
    postgres_folder=
}

# --- Redis --------------------------------------------------------------------------------------------------------

# Each test starts and stops its own server, so this only finds the program.
find_redis() {
    REDIS_SERVER=$(command -v redis-server)
}

install_redis() {
    apt_install_without_services redis-server
}

start_redis() {
    export REDIS_SERVER
    say "Redis at $REDIS_SERVER"
}

# --- Prometheus ---------------------------------------------------------------------------------------------------

# Each test starts its own server, so this only finds the program. promtool is in the same package and folder.
find_prometheus() {
    PROMETHEUS=$(command -v prometheus) && command -v promtool >/dev/null
}

install_prometheus() {
    apt_install_without_services prometheus
}

start_prometheus() {
    export PROMETHEUS
    say "Prometheus at $PROMETHEUS"
}

# --- Chromium -----------------------------------------------------------------------------------------------------

# Each test starts its own browser, so this only finds the program.
find_chromium() {
    CHROMIUM=$(command -v chromium)
}

install_chromium() {
    apt_install chromium
}

start_chromium() {
    export CHROMIUM
    say "Chromium at $CHROMIUM"
}

# --- Python -------------------------------------------------------------------------------------------------------

# The tests of the browser bot in examples/ run it with this.
find_python() {
    command -v python3 >/dev/null
}

install_python() {
    apt_install python3
}

start_python() {
    say "$(python3 --version) at $(command -v python3)"
}

# --- curl ---------------------------------------------------------------------------------------------------------

# curl is not a server, but is found and installed like one: a test runs the commands that the documentation
# gives to new users.

find_curl() {
    command -v curl >/dev/null
}

install_curl() {
    apt_install curl
}

start_curl() {
    :
}

# --- jq, sqlite3, mdBook --------------------------------------------------------------------------------------------

# Commands that the documentation uses, and what makes a book of it. None is a server.
find_jq() {
    command -v jq >/dev/null
}

install_jq() {
    apt_install jq
}

start_jq() {
    :
}

find_sqlite3() {
    command -v sqlite3 >/dev/null
}

install_sqlite3() {
    apt_install sqlite3
}

start_sqlite3() {
    :
}

mdbook_version=0.5.4

find_mdbook() {
    [[ $(target/tools/bin/mdbook --version 2>/dev/null) == "mdbook v$mdbook_version" ]]
}

# Debian has no package of it. Without optimisation it is built in half the time, and it makes the book in a second.
install_mdbook() {
    say "installing mdbook $mdbook_version into target/tools"
    local log=target/mdbook.log
    # In the background, because bash handles a signal only after its foreground command has ended.
    start_process setpriv --pdeathsig TERM -- \
        env CARGO_TARGET_DIR=target/tools/build CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 \
        cargo install "mdbook@$mdbook_version" --debug --no-default-features --locked --root target/tools >"$log" 2>&1
    if ! wait "$started"; then
        missing_because="mdbook $mdbook_version could not be built: $(tail -n 1 "$log")"
        tail -n 20 "$log"
        return 1
    fi
    rm -rf target/tools/build "$log"
}

start_mdbook() {
    :
}

# --- Docker -------------------------------------------------------------------------------------------------------

docker_switch=  # process id of the network that joins the engines
docker_pid=     # of the engine that all tests share
docker_folder=  # its images, its containers, its log
docker_number=  # N, where the network is 10.N.0.0/16

find_docker() {
    may_run_docker || return
    local command
    for command in dockerd containerd runc iptables ip; do
        command -v "$command" >/dev/null || return
    done
    # The same program has two names.
    command -v docker-init >/dev/null || command -v tini >/dev/null
}

install_docker() {
    may_run_docker || return
    apt_install_without_services docker.io iptables iproute2 tini
}

# Whether dockerd can run here. Root in a container lacks the permissions unless the container is privileged.
may_run_docker() {
    if ((EUID != 0)); then
        missing_because='only root can start dockerd'
    elif ! unshare --net --mount --uts --pid --fork true 2>/dev/null; then
        missing_because='namespaces cannot be made here'
    elif [[ ! -w /sys/fs/cgroup || ! (-e /sys/fs/cgroup/cgroup.controllers || -d /sys/fs/cgroup/devices) ]]; then
        missing_because='no cgroups can be made here'
    else
        return 0
    fi
    return 1
}

# Starts the network that connects the engines, and an engine that all tests share. Exports TEST_DOCKER_HOST,
# and TEST_DOCKER_SWITCH and TEST_DOCKER_GATEWAY for tests that start their own engines. TEST_DOCKER_GATEWAY
# is the machine's own address in that network, at which containers reach processes of the machine.
start_docker() {
    mkdir -p target/test-servers
    cleanups+=(stop_docker)
    docker_start_switch
    export TEST_DOCKER_SWITCH=$docker_switch TEST_DOCKER_GATEWAY=10.$docker_number.0.1
    docker_folder=$(mktemp -d "$PWD/target/test-servers/docker-$$-XXXXXX")
    if ((${#docker_folder} > 80)); then
        # The path of a Unix socket may have at most 107 bytes, also in a test's own folder below this one.
        rmdir "$docker_folder"
        docker_folder=$(mktemp -d "/tmp/greenroom-docker-$$-XXXXXX")
    fi

    start_process setpriv --pdeathsig KILL -- scripts/lib/docker-engine "$docker_folder" shared \
        >"$docker_folder/log" 2>&1
    docker_pid=$started
    local tries
    for ((tries = 0; tries < 600; tries++)); do
        if grep -q 'API listen on' "$docker_folder/log"; then
            export TEST_DOCKER_HOST=unix://$docker_folder/docker.sock
            say "$(dockerd --version) on 10.$docker_number.0.0/16, data in ${docker_folder#"$PWD/"}"
            return
        fi
        kill -0 "$docker_pid" 2>/dev/null || break
        sleep 0.05
    done
    say 'dockerd did not start; its log:'
    cat "$docker_folder/log" || true
    exit 1
}

# Creates the network that connects the engines: a bridge in its own namespace, with a wire to the machine.
# There the machine's firewall does not block traffic between engines. The network disappears with its
# process.
docker_start_switch() {
    start_process setpriv --pdeathsig KILL -- unshare --net -- sleep infinity
    docker_switch=$started
    until [[ $(readlink "/proc/$docker_switch/ns/net") != "$(readlink /proc/self/ns/net)" ]]; do
        kill -0 "$docker_switch" 2>/dev/null || die 'a network namespace could not be made'
        sleep 0.01
    done
    # Only one run can have the interface with this name, and so this address range.
    local number tries
    for ((tries = 0; tries < 200; tries++)); do
        number=$((64 + RANDOM % 64))
        [[ $(ip -4 route show root "10.$number.0.0/16") ]] && continue
        [[ $(ip -4 route show match "10.$number.0.0/16" | grep -v '^default') ]] && continue
        ip link add "greenroom-$number" type veth peer name machine netns "$docker_switch" 2>/dev/null && break
    done
    ((tries < 200)) || die 'found no range of addresses for the network of Docker in 10.64.0.0/10'
    docker_number=$number
    ip address add "10.$number.0.1/16" dev "greenroom-$number"
    ip link set "greenroom-$number" up
    nsenter --net --target "$docker_switch" -- sh -ec \
        'ip link add switch type bridge; ip link set switch up; ip link set machine master switch up'
}

stop_docker() {
    if [[ $docker_pid ]]; then
        # Ends the engine at once, because nothing of it is kept. When the first process of its namespace
        # ends, all other processes end too. After docker_pid has ended, no process writes into the folder any
        # more.
        local first
        first=$(<"/proc/$docker_pid/task/$docker_pid/children")
        [[ $first ]] && kill -s KILL "$first" && wait "$docker_pid"
        end_process "$docker_pid" KILL
    fi 2>/dev/null
    [[ $docker_switch ]] && end_process "$docker_switch" KILL
    [[ $docker_number ]] && ip link delete "greenroom-$docker_number" 2>/dev/null
    docker_remove_cgroups
    [[ $docker_folder ]] && rm -rf -- "$docker_folder"
    docker_pid=
    docker_switch=
    docker_number=
    docker_folder=
}

# Removes the empty cgroups of this run, and of earlier runs that were killed before they could do so.
docker_remove_cgroups() {
    local group groups=()
    for group in /sys/fs/cgroup/greenroom-* /sys/fs/cgroup/*/greenroom-*; do
        [[ -d $group && ! -e /sys/class/net/${group##*/} ]] && groups+=("$group")
    done
    ((${#groups[@]})) || return 0
    # The kernel may not have finished with a killed process yet.
    timeout 5 bash -c 'until find "$@" -depth -type d -exec rmdir {} +; do sleep 0.05; done' - "${groups[@]}" 2>/dev/null
}

# --- Registry -----------------------------------------------------------------------------------------------------

registry_pid=
registry_folder= # its configuration, its images, its log

find_registry() {
    command -v docker-registry >/dev/null
}

install_registry() {
    apt_install_without_services docker-registry
}

# Starts a registry that every engine can use without TLS. Exports TEST_REGISTRY, its address, and
# TEST_REGISTRY_LOG, its log file with one line for each request.
start_registry() {
    mkdir -p target/test-servers
    cleanups+=(stop_registry)
    registry_folder=$(mktemp -d "$PWD/target/test-servers/registry-$$-XXXXXX")
    local address tries
    for ((tries = 0; tries < 20; tries++)); do
        # start_postgres explains how a port is found.
        address=${TEST_DOCKER_GATEWAY:-127.0.0.1}:$((16384 + RANDOM % 16384))
        if registry_try_address "$address"; then
            export TEST_REGISTRY=$address TEST_REGISTRY_LOG=$registry_folder/log
            say "registry on $address, data in ${registry_folder#"$PWD/"}"
            return
        fi
        grep -q 'address already in use' "$registry_folder/log" || break
    done
    say 'docker-registry did not start; its log:'
    cat "$registry_folder/log" || true
    exit 1
}

# Starts the registry at an address and waits until it accepts connections. Fails if the registry ends before
# that.
registry_try_address() {
    cat >"$registry_folder/config.yml" <<END
version: 0.1
storage:
  filesystem:
    rootdirectory: $registry_folder/data
  delete:
    enabled: true
http:
  addr: $1
END
    start_process setpriv --pdeathsig KILL -- docker-registry serve "$registry_folder/config.yml" \
        >"$registry_folder/log" 2>&1
    registry_pid=$started
    local tries
    for ((tries = 0; tries < 600; tries++)); do
        grep -q 'listening on' "$registry_folder/log" && return
        kill -0 "$registry_pid" 2>/dev/null || break
        sleep 0.05
    done
    end_process "$registry_pid" KILL || true
    registry_pid=
    return 1
}

stop_registry() {
    [[ $registry_pid ]] && end_process "$registry_pid" KILL
    [[ $registry_folder ]] && rm -rf -- "$registry_folder"
    registry_pid=
    registry_folder=
}

# --- moto ---------------------------------------------------------------------------------------------------------

# Only the extras of moto for the services in use, and the packages of its server. `moto[server]` is for all
# services and twice as large. Auto Scaling needs EC2.
moto_requirements=('moto[sqs,dynamodb,autoscaling,ec2]>=5.1,<6' 'flask>=3,<4' 'flask-cors>=5,<7')
moto_python=target/moto/bin/python # of a virtual environment, which is kept
moto_unfinished= # a virtual environment that is being made
moto_pid=
moto_log=

find_moto() {
    # An environment for other requirements, or for a version of Python that no longer exists, is made again.
    [[ $(cat target/moto/requirements 2>/dev/null) == "${moto_requirements[*]}" ]] &&
        "$moto_python" -c 'import flask_cors, moto' 2>/dev/null
}

install_moto() {
    local python
    python=$(find_python_with_venv) || { apt_install python3 python3-venv && python=$(find_python_with_venv); } || {
        missing_because=${missing_because:-'python3 cannot make virtual environments'}
        return 1
    }
    say "installing ${moto_requirements[*]} into target/moto"
    cleanups+=(moto_remove_unfinished)
    moto_unfinished=$(mktemp -d target/moto-XXXXXX)
    local pip=("$moto_unfinished/bin/python" -m pip --disable-pip-version-check --no-input)
    if ! {
        "$python" -m venv "$moto_unfinished" && "${pip[@]}" install --retries 2 "${moto_requirements[@]}"
    } </dev/null >"$moto_unfinished/log" 2>&1; then
        missing_because="moto is not installed, and could not be: $(tail -n 1 "$moto_unfinished/log")"
        tail -n 20 "$moto_unfinished/log"
        moto_remove_unfinished
        return 1
    fi
    printf '%s\n' "${moto_requirements[*]}" >"$moto_unfinished/requirements"
    rm -rf target/moto
    mv -T "$moto_unfinished" target/moto
    moto_unfinished=
}

# Finds a Python that can make virtual environments. Debian has a separate package for that.
find_python_with_venv() {
    local python
    for python in python3 /usr/bin/python3; do
        "$python" -c 'import ensurepip, venv' 2>/dev/null && echo "$python" && return
    done
    return 1
}

moto_remove_unfinished() {
    [[ $moto_unfinished ]] && rm -rf -- "$moto_unfinished"
    moto_unfinished=
}

# Starts moto, which stands in for AWS, and exports TEST_MOTO_URL. Also exports fake credentials, so that no
# test can reach a developer's account.
start_moto() {
    mkdir -p target/test-servers
    cleanups+=(stop_moto)
    moto_log=$(mktemp "$PWD/target/test-servers/moto-$$-XXXXXX.log")
    start_process setpriv --pdeathsig KILL -- "$moto_python" scripts/lib/moto-server >"$moto_log" 2>&1
    moto_pid=$started
    local tries
    for ((tries = 0; tries < 600; tries++)); do
        TEST_MOTO_URL=$(sed -n 's/^serving at //p' "$moto_log")
        if [[ $TEST_MOTO_URL ]]; then
            export TEST_MOTO_URL
            unset "${!AWS_@}"
            export AWS_ACCESS_KEY_ID=moto AWS_SECRET_ACCESS_KEY=moto AWS_EC2_METADATA_DISABLED=true
            export AWS_CONFIG_FILE=/dev/null AWS_SHARED_CREDENTIALS_FILE=/dev/null
            say "moto at $TEST_MOTO_URL"
            return
        fi
        kill -0 "$moto_pid" 2>/dev/null || break
        sleep 0.05
    done
    say 'moto did not start; its log:'
    cat "$moto_log" || true
    exit 1
}

stop_moto() {
    [[ $moto_pid ]] && end_process "$moto_pid" KILL
    [[ $moto_log ]] && rm -f -- "$moto_log"
    moto_pid=
    moto_log=
}
