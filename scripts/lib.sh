# Shared by the scripts: what they need of the machine, and the binary. Sourced, not run.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$HOME/.cache/clink-target}"
VENV="$CACHE/clink-venv"
# Pinned to major versions: what the tests were written against.
PYTHON_PACKAGES=(
    'asyncpg==0.*' 'duckdb==1.*' 'flask==3.*' 'flask-cors==6.*' 'moto[s3]==5.*' 'polars==1.*' 'psycopg[binary]==3.*'
    'psycopg2-binary==2.*' 'pyarrow==21.*' 'pytest==8.*' 'pytest-timeout==2.*' 'sqlalchemy==2.*'
)

say() { printf '%s\n' "$*" >&2; }

die() {
    say "error: $*"
    exit 1
}

# Installs the Debian packages of the commands and files that are absent: COMMAND=PACKAGE … (`cc` alone is the C toolchain)
install_missing() {
    local pair packages=()
    for pair in "$@"; do
        case ${pair%%=*} in
        # A compiler can be there without the C library's headers.
        cc) echo 'int main(void) { return 0; }' | cc -x c - -o /dev/null 2>/dev/null || packages+=(gcc libc6-dev) ;;
        /*) [[ -e ${pair%%=*} ]] || packages+=("${pair#*=}") ;;
        *) command -v "${pair%%=*}" >/dev/null || packages+=("${pair#*=}") ;;
        esac
    done
    # Debian ships the module without its installer; only a full venv has pip.
    python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
    ((${#packages[@]} == 0)) || install_packages "${packages[@]}"
}

# Installs Debian packages: PACKAGE …
install_packages() {
    local packages=("$@")
    command -v apt-get >/dev/null || die "please install: ${packages[*]} (there is no apt-get to do it)"
    local sudo=()
    if ((EUID != 0)); then
        command -v sudo >/dev/null || die "please install as root: apt-get install ${packages[*]}"
        sudo=(sudo)
    fi
    say "installing ${packages[*]}"
    timeout 600 "${sudo[@]}" apt-get update -q >&2 || die "apt-get update failed"
    timeout 900 "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "${packages[@]}" >&2 || die "could not install ${packages[*]}"
}

# A Python environment with the clients, below the user's cache; made once.
make_venv() {
    local stamp="$VENV/clink-packages"
    [[ -f $stamp && $(<"$stamp") == "${PYTHON_PACKAGES[*]}" ]] && return 0
    say "making the Python environment $VENV"
    python3 -m venv "$VENV" || die "could not make $VENV"
    timeout 900 "$VENV/bin/pip" install --quiet --disable-pip-version-check "${PYTHON_PACKAGES[@]}" >&2 ||
        die "could not install the Python packages ${PYTHON_PACKAGES[*]}"
    printf '%s\n' "${PYTHON_PACKAGES[*]}" >"$stamp"
}

# node-postgres, below the user's cache; made once.
make_node() {
    [[ -d $CACHE/clink-node/node_modules/pg-copy-streams ]] && return 0
    timeout 300 npm install --silent --no-audit --no-fund --prefix "$CACHE/clink-node" 'pg@8' 'pg-copy-streams@7' >&2 ||
        die "could not install the packages pg and pg-copy-streams of node"
}

# RocksDB's C++ code as a static library below the user's cache, built once. Tells cargo where it lies, so that no target
# folder builds it again.
rocksdb_library() {
    local version folder
    version=$(sed -n '/^name = "librocksdb-sys"$/{n;s/^version = "\(.*\)"$/\1/p}' "$ROOT/Cargo.lock")
    [[ -n $version ]] || die "Cargo.lock names no librocksdb-sys"
    folder="$CACHE/clink-rocksdb/$version"
    # The bindings are generated at each cold build, which takes libclang and its headers.
    compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null && compgen -G '/usr/lib/llvm-*/lib/clang/*/include' >/dev/null ||
        install_packages libclang1-14 libclang-common-14-dev
    command -v c++ >/dev/null || install_packages g++
    if [[ ! -f $folder/librocksdb.a ]]; then
        command -v cargo >/dev/null || die "the Rust toolchain is missing: see https://rustup.rs"
        say "building RocksDB; this takes about 5 to 10 minutes, once"
        build_rocksdb "$folder" || die "RocksDB could not be built"
    fi
    export ROCKSDB_LIB_DIR="$folder" ROCKSDB_STATIC=1
}

# Compiles the sources of the crate librocksdb-sys into FOLDER/librocksdb.a, with the defines of its build script. That
# compiles 340 files one by one, most of the time the same headers; here some twenty files are one unit, as in RocksDB's own
# `make unity`.
build_rocksdb() {
    local folder=$1 build="$1/build" crates rocksdb lz4 zstd flags
    crates=$(cd "$ROOT" && timeout 1800 cargo metadata --locked --format-version 1 | tr ',' '\n' |
        sed -n 's/.*"manifest_path":"\(.*\)\/Cargo.toml".*/\1/p') || return 1
    rocksdb=$(grep '/librocksdb-sys-[^/]*$' <<<"$crates") && lz4=$(grep '/lz4-sys-[^/]*$' <<<"$crates") &&
        zstd=$(grep '/zstd-sys-[^/]*$' <<<"$crates") || return 1
    flags=(
        -std=c++20 -O2 -fPIC -ffunction-sections -fdata-sections -w -include cstdint
        -I"$rocksdb" -I"$rocksdb/rocksdb/include" -I"$rocksdb/rocksdb" -I"$lz4/liblz4/lib" -I"$zstd/zstd/lib"
        -DLZ4=1 -DZSTD=1 -DNDEBUG=1 -DHAVE_ALIGNED_NEW -DHAVE_UINT128_EXTENSION -DOS_LINUX -DROCKSDB_PLATFORM_POSIX
        -DROCKSDB_LIB_IO_POSIX -DROCKSDB_SCHED_GETCPU_PRESENT -DROCKSDB_AUXV_GETAUXVAL_PRESENT
        -DROCKSDB_FALLOCATE_PRESENT -DROCKSDB_RANGESYNC_PRESENT
    )
    rm -rf "$build" && mkdir -p "$build" || return 1
    # The crate has its own build_version.cc.
    tr -d ' \r' <"$rocksdb/rocksdb_lib_sources.txt" | grep -v '^util/build_version.cc$' |
        awk -v to="$build" '{ printf "#include \"rocksdb/%s\"\n", $0 > sprintf("%s/unit-%02d.cc", to, (NR - 1) / 22) }'
    printf '#include "build_version.cc"\n' >"$build/version.cc"
    find "$build" -name '*.cc' -print0 | sort -z |
        timeout 7200 xargs -0 -P "$(nproc)" -I{} c++ "${flags[@]}" -c {} -o {}.o || return 1
    ar rcs "$folder/librocksdb.a.part" "$build"/*.o && mv "$folder/librocksdb.a.part" "$folder/librocksdb.a" && rm -rf "$build"
}

# Builds the binary unless CLINK_BIN names one, and exports CLINK_BIN.
build_binary() {
    if [[ -z ${CLINK_BIN:-} ]]; then
        command -v cargo >/dev/null || die "the Rust toolchain is missing: see https://rustup.rs, or set CLINK_BIN"
        rocksdb_library
        if [[ ! -x $CARGO_TARGET_DIR/debug/clink ]]; then
            say "building clink; from nothing this takes about 15 to 30 minutes on two cores"
        fi
        (cd "$ROOT" && timeout 3600 cargo build --locked --bin clink) >&2 || die "the build failed"
        CLINK_BIN="$CARGO_TARGET_DIR/debug/clink"
    fi
    [[ -x $CLINK_BIN ]] || die "CLINK_BIN=$CLINK_BIN is not an executable file"
    CLINK_BIN=$(realpath "$CLINK_BIN")
    export CLINK_BIN
}
