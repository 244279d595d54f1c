# shellcheck shell=bash
#
# Packages of Python that check the OpenAPI document and the client in clients/python, for scripts/lib/servers.sh,
# which sources this file and describes the three functions.

# Whole versions, so that a new release changes no result. The client itself needs only httpx.
python_client_requirements=(httpx==0.28.1 mypy==2.4.1 openapi-python-client==0.29.1 ruff==0.17.5)
python_client_unfinished= # a virtual environment that is being made

find_python_client() {
    [[ $(cat target/python/requirements 2>/dev/null) == "${python_client_requirements[*]}" ]] &&
        target/python/bin/python -c 'import httpx, mypy, openapi_python_client' 2>/dev/null
}

install_python_client() {
    local python
    python=$(find_python_with_venv) || { apt_install python3 python3-venv && python=$(find_python_with_venv); } || {
        missing_because=${missing_because:-'python3 cannot make virtual environments'}
        return 1
    }
    say "installing ${python_client_requirements[*]} into target/python"
    cleanups+=(python_client_remove_unfinished)
    python_client_unfinished=$(mktemp -d target/python-XXXXXX)
    local pip=("$python_client_unfinished/bin/python" -m pip --disable-pip-version-check --no-input)
    if ! {
        "$python" -m venv "$python_client_unfinished" &&
            "${pip[@]}" install --retries 2 "${python_client_requirements[@]}"
    } </dev/null >"$python_client_unfinished/log" 2>&1; then
        missing_because="the packages for the Python client are not installed, and could not be: $(
            tail -n 1 "$python_client_unfinished/log"
        )"
        tail -n 20 "$python_client_unfinished/log"
        python_client_remove_unfinished
        return 1
    fi
    printf '%s\n' "${python_client_requirements[*]}" >"$python_client_unfinished/requirements"
    rm -rf target/python
    mv -T "$python_client_unfinished" target/python
    python_client_unfinished=
}

python_client_remove_unfinished() {
    [[ $python_client_unfinished ]] && rm -rf -- "$python_client_unfinished"
    python_client_unfinished=
}

# Each test starts its own Python, so this only says where it is.
start_python_client() {
    export TEST_PYTHON=$PWD/target/python/bin/python
    say "Python with ${python_client_requirements[*]} in target/python"
}
