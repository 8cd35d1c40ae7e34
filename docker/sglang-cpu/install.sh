#!/bin/sh
# Makes a virtual environment with the SGLang server for CPUs: install.sh FOLDER [pip options]
set -eu
here=$(dirname "$0") folder=$1
shift
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check "$@" -r "$here/requirements.txt"
"$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps sglang==0.5.23 torchvision==0.28.0
packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp -r "$here/sgl_kernel" "$here"/sglang_cpu_* "$packages/"
"$folder/bin/python" -c 'import sglang, sgl_kernel, torchvision' # fails here, with a reason, rather than at the first run
