# Sourced by the other scripts: makes `.venv` in the repository, and keeps it as pyproject.toml has it.
#
#   prepare_environment demo|test|check   afterwards `python` and the commands of the environment come first in PATH
#   borrow_environment                    the same without pip or a network, where the interpreter has torch
#
# demo: trainspan and torch. test: and what the tests need. check: what the checks need; torch is not among it.
# PYTHON, when set, names the interpreter to start from; otherwise it is the python3 in PATH, or a newer one beside it.
# The first time takes minutes where torch is missing; every later time is one comparison of a stamp.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
ENVIRONMENT=$ROOT/.venv
PIP_LOG=$ROOT/.cache/pip.log
TORCH_IS_THERE='import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'

say() { printf 'environment: %s\n' "$*" >&2; }

prepare_environment() {
  local group=$1 stamp key
  stamp=$ENVIRONMENT/.prepared-$group
  key=$(_environment_key)
  if ! is_prepared "$group"; then
    mkdir -p "$ROOT/.cache"
    # One at a time: two scripts may have been started together.
    (
      command -v flock >/dev/null && flock 9
      _make_environment && _install "$group" && printf '%s\n' "$key" >"$stamp"
    ) 9>"$ROOT/.cache/environment.lock" || return 1
  fi
  export VIRTUAL_ENV=$ENVIRONMENT PATH=$ENVIRONMENT/bin:$PATH
}

is_prepared() {
  [ -x "$ENVIRONMENT/bin/python" ] && [ "$(cat "$ENVIRONMENT/.prepared-$1" 2>/dev/null)" = "$(_environment_key)" ]
}

# In `.cache/borrowed`: the packages of the interpreter, this checkout, and its start-up hook.
borrow_environment() {
  local base here place=$ROOT/.cache/borrowed
  base=$(_base_python) || return 1
  (cd / && "$base" -c "$TORCH_IS_THERE") || return 1
  mkdir -p "$ROOT/.cache"
  rm -rf "$place"
  "$base" -m venv --without-pip --system-site-packages "$place" || return 1
  "$place/bin/python" -c "$TORCH_IS_THERE" || ENVIRONMENT=$place _borrow_packages "$base"
  here=$("$place/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  # Read in this order: the hook needs the checkout.
  printf '%s\n' "$ROOT/src" >"$here/_trainspan.pth"
  cp "$ROOT/src/trainspan.pth" "$here/trainspan.pth"
  say "using $base and what it has"
  ENVIRONMENT=$place
  export VIRTUAL_ENV=$ENVIRONMENT PATH=$ENVIRONMENT/bin:$PATH
}

# What the environment is made from. The start-up hook is in it because an editable install copies that file.
_environment_key() {
  (
    cd "$ROOT" && { pwd && cat pyproject.toml constraints.txt src/trainspan.pth src/trainspan.start scripts/environment.sh; }
  ) | sha256sum
}

_base_python() {
  local candidate
  for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11 python3.10; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  say "no Python of version 3.10 or newer found; put one in PATH, or name it: PYTHON=/path/to/python3"
  return 1
}

_make_environment() {
  "$ENVIRONMENT/bin/python" -c 'import pip' 2>/dev/null && return
  local base flags=()
  base=$(_base_python) || return 1
  if (cd / && "$base" -c "$TORCH_IS_THERE"); then
    say "using the torch of $base"
    flags=(--system-site-packages)
  fi
  say "making .venv from $base ($("$base" -V))"
  rm -rf "$ENVIRONMENT"
  if ! "$base" -m venv "${flags[@]}" "$ENVIRONMENT"; then
    say "$base cannot make a virtual environment; install its venv module (Debian: apt install python3-venv)"
    return 1
  fi
  [ ${#flags[@]} -eq 0 ] || "$ENVIRONMENT/bin/python" -c "$TORCH_IS_THERE" || _borrow_packages "$base"
}

# When the interpreter is itself that of a virtual environment, `--system-site-packages` leads past its packages.
_borrow_packages() {
  local packages here
  packages=$(cd / && "$1" -c 'import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec("torch").origin).parents[1])')
  here=$("$ENVIRONMENT/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  printf "import site; site.addsitedir('%s')\n" "$packages" >"$here/borrowed.pth"
}

_install() {
  local group=$1 python=$ENVIRONMENT/bin/python wanted=(--editable "$ROOT")
  local constraints=$ROOT/.cache/constraints.txt
  [ "$group" = demo ] || wanted+=(--group "$ROOT/pyproject.toml:$group")
  [ "$group" != test ] || wanted+=(--group "$ROOT/pyproject.toml:frameworks")
  cp "$ROOT/constraints.txt" "$constraints"
  if [ "$group" != check ] && ! "$python" -c "$TORCH_IS_THERE"; then
    say "torch is not there: fetching $(grep '^torch==' "$ROOT/constraints.txt"), which can be several GB"
    wanted+=(torch numpy)  # without numpy torch works and complains
  elif [ "$group" != check ]; then
    # The frameworks require a torch: the one that is there is to satisfy them.
    "$python" -c 'from importlib.metadata import version; print("torch==" + version("torch"))' >"$constraints"
    grep -v '^torch==' "$ROOT/constraints.txt" >>"$constraints"
  fi
  say "installing what '$group' needs"
  # pip knows `--group` since 25.1.
  if ! _pip --upgrade 'pip>=25.1' || ! _pip --constraint "$constraints" "${wanted[@]}"; then
    tail -n 25 "$PIP_LOG" >&2
    say "pip failed; all it said is in $PIP_LOG"
    return 1
  fi
}

# Runs pip install; of what it says, the long steps are shown.
_pip() {
  set -o pipefail
  "$ENVIRONMENT/bin/python" -m pip install --disable-pip-version-check --progress-bar off "$@" 2>&1 </dev/null |
    tee -a "$PIP_LOG" |
    sed -u -n -E 's/^ *Downloading (\S+\.whl \([0-9.]+ [MG]B\))$/environment:   \1/p; s/^Installing collected packages.*/environment:   installing/p' >&2
}
