# Finishes a root file system: configure.sh DEPOT PACKAGE...
set -eu
depot=$1
shift
export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true LC_ALL=C HOME=/root
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin

# The image is kept when all is done, or not at all: nothing has to survive a crash.
mkdir -p /etc/dpkg/dpkg.cfg.d
echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/sandpit

# What the first packages' scripts expect of each other before they are configured.
[ -e /usr/bin/awk ] || ln -s mawk /usr/bin/awk
[ -e /etc/passwd ] || cp /usr/share/base-passwd/passwd.master /etc/passwd
[ -e /etc/group ] || cp /usr/share/base-passwd/group.master /etc/group
dpkg --force-depends --install "$depot"/first/*.deb

# All others: apt finds the order, and looks at what excludes each other.
if [ $# -gt 0 ]; then
	echo "deb [trusted=yes] file:$depot ./" >"$depot/sources.list"
	set -- -o Dir::Etc::SourceList="$depot/sources.list" -o Dir::Etc::SourceParts=/dev/null "$@"
	apt-get -o Dir::Etc::SourceList="$depot/sources.list" -o Dir::Etc::SourceParts=/dev/null update -q
	apt-get install -qy --no-install-recommends "$@"
fi
dpkg --audit
rm -rf "$depot" /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/debconf/*-old /var/lib/dpkg/*-old /var/log/apt /var/log/*.log
