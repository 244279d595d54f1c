# shellcheck shell=bash
#
# Programs that the tests of deploy/ need, for scripts/lib/servers.sh, which sources this file and describes the three
# functions.

# --- HAProxy ------------------------------------------------------------------------------------------------------

# The test of deploy/compose starts it with the configuration there.
find_haproxy() {
    HAPROXY=$(PATH=$PATH:/usr/sbin command -v haproxy)
}

install_haproxy() {
    apt_install_without_services haproxy
}

start_haproxy() {
    export HAPROXY
}

# --- systemd ------------------------------------------------------------------------------------------------------

# Reads the units in deploy/systemd. It runs nothing.
find_systemd() {
    command -v systemd-analyze >/dev/null
}

install_systemd() {
    apt_install systemd
}

start_systemd() {
    :
}

# Boots a systemd of its own for these units, in namespaces, with the programs of this machine.
find_nspawn() {
    may_run_nspawn && command -v systemd-nspawn >/dev/null && [[ -x /usr/lib/systemd/systemd || -x /lib/systemd/systemd ]]
}

install_nspawn() {
    may_run_nspawn && apt_install systemd systemd-container
}

# A container of systemd needs what dockerd needs, and the programs of the machine below /usr.
may_run_nspawn() {
    may_run_docker || { missing_because=${missing_because/start dockerd/start systemd-nspawn} && return 1; }
    [[ -L /bin && -L /lib ]] || { missing_because='/bin and /lib are not below /usr' && return 1; }
}

start_nspawn() {
    :
}

# --- Validators ---------------------------------------------------------------------------------------------------

# Programs of Python that read the manifests in deploy/: the schemas of Kubernetes, and a parser of HCL.
validators_requirements=('kubernetes-validate>=1.34' 'python-hcl2>=7,<9' 'PyYAML>=6,<7')
validators_python=target/validators/bin/python # of a virtual environment, which is kept

find_validators() {
    [[ $(cat target/validators/requirements 2>/dev/null) == "${validators_requirements[*]}" ]] &&
        "$validators_python" -c 'import hcl2, kubernetes_validate, yaml' 2>/dev/null
}

install_validators() {
    local python log
    python=$(find_python_with_venv) || { apt_install python3 python3-venv && python=$(find_python_with_venv); } || {
        missing_because=${missing_because:-'python3 cannot make virtual environments'}
        return 1
    }
    say "installing ${validators_requirements[*]} into target/validators"
    log=$(mktemp target/validators-XXXXXX.log)
    rm -rf target/validators
    if ! {
        "$python" -m venv target/validators &&
            "$validators_python" -m pip --disable-pip-version-check --no-input install --retries 2 \
                "${validators_requirements[@]}"
    } </dev/null >"$log" 2>&1; then
        missing_because="validators are not installed, and could not be: $(tail -n 1 "$log")"
        rm -rf "$log" target/validators
        return 1
    fi
    rm -f "$log"
    # Written last: an installation that was interrupted is made again.
    printf '%s\n' "${validators_requirements[*]}" >target/validators/requirements
}

start_validators() {
    export VALIDATORS=$PWD/$validators_python
}
