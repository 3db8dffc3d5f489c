#!/bin/sh
# Installs what an image's packages.txt and requirements.txt list. Its Dockerfile runs this, and so does
# `agentrl sandbox build` in a chroot: both builds agree because both are this script.
set -eu
cd "$(dirname "$0")"
export DEBIAN_FRONTEND=noninteractive
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d # no package may start a service
chmod 755 /usr/sbin/policy-rc.d
apt-get update -qq
sed 's/#.*//' packages.txt | xargs apt-get install -y -qq --no-install-recommends
if [ -f requirements.txt ]; then
    wheels=""
    [ ! -d wheels ] || wheels="--no-index --find-links wheels" # fetched by the builder, which may know the way
    # shellcheck disable=SC2086
    python3 -m pip install -q --break-system-packages --no-cache-dir $wheels -r requirements.txt
fi
id agent > /dev/null 2>&1 || useradd --uid 1000 --home-dir /work --shell /bin/bash agent
mkdir -p /work
chown agent:agent /work
apt-get clean
rm -rf /usr/sbin/policy-rc.d /var/lib/apt/lists/* /var/log/*.log /var/log/apt
