#!/bin/sh
# Installs what the portable devices need on a machine without a GPU: OpenCL on the CPU (PoCL) and a
# software Vulkan driver (Mesa's lavapipe 25 or newer). For Debian, as root; does nothing that is
# done already. Dawn, which is WebGPU, comes with pip.
set -eu

vulkan_version() { dpkg-query -W -f '${Version}' mesa-vulkan-drivers 2>/dev/null | cut -d. -f1; }

have_opencl() { ldconfig -p | grep -q 'libOpenCL\.so\.1' && ls /etc/OpenCL/vendors/*.icd >/dev/null 2>&1; }

have_vulkan() {
  ls /usr/share/vulkan/icd.d/lvp_icd*.json >/dev/null 2>&1 || return 1
  [ "$(vulkan_version)" -ge 25 ] 2>/dev/null
}

if have_opencl && have_vulkan; then
  exit 0
fi
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
  echo "devices: not root on Debian, so nothing was installed; tests of missing devices are skipped" >&2
  exit 0
fi

export DEBIAN_FRONTEND=noninteractive
install() { apt-get install --yes --quiet --quiet --no-install-recommends "$@" >/dev/null; }

apt-get update --quiet --quiet
have_opencl || install pocl-opencl-icd ocl-icd-libopencl1 || echo "devices: no OpenCL could be installed" >&2
if ! have_vulkan; then
  install mesa-vulkan-drivers || true
fi
# The mirror that this machine uses.
mirror=$(apt-cache policy | sed -n 's/.*\(https\{0,1\}:[^ ]*debian\) .*/\1/p' | grep -v security | head -n 1)
if ! have_vulkan && [ -n "$mirror" ]; then
  # The release's own driver is too old: sums past 65,535 terms are wrong. Backports have another.
  . /etc/os-release
  list=/etc/apt/sources.list.d/torch-tiny-backports.list
  trap 'rm -f "$list"' EXIT
  echo "deb $mirror $VERSION_CODENAME-backports main" >"$list"
  apt-get update --quiet --quiet
  install --target-release "$VERSION_CODENAME-backports" mesa-vulkan-drivers || true
fi
have_vulkan || echo "devices: no Vulkan driver that is new enough could be installed" >&2
