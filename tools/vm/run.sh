#!/usr/bin/env bash
# Runs the tests of limits on another kernel: that of Debian, in a virtual machine with
# systemd and version 2 of control groups only.
#
#	bash tools/vm/run.sh CACHE
#
# CACHE is a directory for the root file system, which takes minutes to make. It is made
# again when its recipe below has changed; remove the directory to get newer packages.
# Debian's packages are needed for that; the virtual machine has no network.
#
# SANDPIT_TEST_VM_ACCEL is kvm or tcg; without it /dev/kvm is tried out.
# Without KVM the virtual machine is emulated: a second inside takes four outside, and more if
# others use the processors.
#
# SANDPIT_TEST_VM_MINUTES bounds how long the virtual machine may run. Default: 240.
set -euo pipefail
cd "$(dirname "$0")/../.."

die() {
	echo "vm: $*" >&2
	exit 1
}

(($# == 1)) || die "usage: bash tools/vm/run.sh CACHE"
for program in mmdebstrap mke2fs qemu-system-x86_64; do
	command -v "$program" >/dev/null || die "no $program; install mmdebstrap, e2fsprogs and qemu-system-x86"
done
((EUID == 0)) || die "only root can create the root file system"

mkdir -p "$1"
cache=$(cd "$1" && pwd)
minutes=${SANDPIT_TEST_VM_MINUTES:-240}
suite=bookworm
packages=systemd,systemd-sysv,dbus,dbus-user-session,libpam-systemd,udev,kmod,linux-image-cloud-amd64,procps,iproute2,e2fsprogs,busybox-static,python3-minimal,ca-certificates

tmp=$(mktemp -d)
qemu=
cleanup() {
	[[ -z $qemu ]] || kill -9 "$qemu" 2>/dev/null || true
	rm -rf "$tmp"
}
trap cleanup EXIT

# make_root makes root.img, vmlinuz and initrd in the cache.
make_root() {
	echo "vm: creating the root file system ($suite)"
	mmdebstrap --quiet --variant=apt --include="$packages" \
		--customize-hook='chroot "$1" useradd --create-home --uid 1000 --shell /bin/sh tester' \
		--customize-hook='mkdir -p "$1/var/lib/systemd/linger" "$1/payload" && touch "$1/var/lib/systemd/linger/tester"' \
		--customize-hook='upload tools/vm/sandpit-tests.service /etc/systemd/system/sandpit-tests.service' \
		--customize-hook='chroot "$1" systemctl --quiet enable sandpit-tests.service' \
		--customize-hook='chroot "$1" systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer' \
		"$suite" "$tmp/root.tar"
	mkdir "$tmp/root"
	tar -C "$tmp/root" --exclude=./dev -xf "$tmp/root.tar"
	rm "$tmp/root.tar"
	mkdir -p "$tmp/root/dev"
	cp "$tmp"/root/boot/vmlinuz-* "$cache/vmlinuz"
	cp "$tmp"/root/boot/initrd.img-* "$cache/initrd"
	truncate -s 4G "$cache/root.img.new"
	mke2fs -q -F -t ext4 -d "$tmp/root" "$cache/root.img.new"
	rm -rf "$tmp/root"
	mv "$cache/root.img.new" "$cache/root.img"
}

recipe=$( (declare -f make_root && echo "$suite $packages" && cat tools/vm/sandpit-tests.service) | sha256sum | cut -d' ' -f1)
if [[ ! -e $cache/root.img || $(cat "$cache/recipe" 2>/dev/null) != "$recipe" ]]; then
	make_root
	echo "$recipe" >"$cache/recipe"
fi

# What is tested, on a disk of its own.
payload=$tmp/payload
mkdir -p "$payload"
export CGO_ENABLED=0
go generate ./internal/inside/guestbin
go build -ldflags="-s -w" -o "$payload/sandpit" ./cmd/sandpit
for package in provider/gvisor conformance/survive internal/core/memory; do
	go test -c -o "$payload/$(basename "$package").test" "./$package"
done
cp tools/vm/inside.sh tools/vm/skips.txt deploy/sandpit.service "$payload/"
truncate -s $(($(du -sm "$payload" | cut -f1) + 64))M "$tmp/payload.img"
mke2fs -q -F -t ext4 -d "$payload" -L payload "$tmp/payload.img"

# boot ACCELERATOR COMMAND-LINE QEMU-ARGUMENT...
boot() {
	local accel=$1 line=$2
	shift 2
	local machine=(-accel kvm -cpu host -smp 2)
	if [[ $accel == tcg ]]; then
		# The clock counts instructions, one each nanosecond: deadlines of tests are met
		# however slow the emulation is and however busy this machine. QEMU can do that
		# for one processor. The features that are off only cost time here.
		machine=(-accel tcg,thread=single,tb-size=1024 -icount shift=0 -smp 1
			-cpu max,la57=off,smap=off,smep=off,pku=off,mpx=off -no-hpet)
		line+=" mitigations=off tsc=reliable no_timer_check"
	fi
	exec qemu-system-x86_64 "${machine[@]}" -m 4096 \
		-nodefaults -display none -no-reboot -nic none \
		-kernel "$cache/vmlinuz" -initrd "$cache/initrd" \
		-append "root=/dev/vda rw console=ttyS0 quiet panic=-1 audit=0 $line" \
		-drive file="$cache/root.img",if=virtio,format=raw,snapshot=on \
		-drive file="$tmp/payload.img",if=virtio,format=raw,readonly=on \
		-device virtio-rng-pci "$@" </dev/null
}

# kvm_works boots the kernel and no more. A device that is there may still hang.
kvm_works() {
	[[ -w /dev/kvm ]] || return
	boot kvm "init=/bin/true" -serial "file:$tmp/kvm.log" >/dev/null 2>&1 &
	qemu=$!
	local ok=1
	for _ in $(seq 200); do
		kill -0 "$qemu" 2>/dev/null || break
		if grep -qs 'Attempted to kill init' "$tmp/kvm.log"; then
			ok=0
			break
		fi
		sleep 0.1
	done
	grep -qs 'Attempted to kill init' "$tmp/kvm.log" && ok=0
	kill -9 "$qemu" 2>/dev/null || true
	wait "$qemu" 2>/dev/null || true
	qemu=
	return "$ok"
}

accel=${SANDPIT_TEST_VM_ACCEL:-}
if [[ -z $accel ]]; then
	accel=tcg
	if kvm_works; then accel=kvm; fi
fi

echo "vm: booting by $accel"
start=$SECONDS
: >"$tmp/results"
boot "$accel" "systemd.unified_cgroup_hierarchy=1" -serial "file:$tmp/console" -serial "file:$tmp/results" &
qemu=$!
tail --pid="$qemu" -n +1 -f "$tmp/results" | sed -u 's/\r$//' &
while kill -0 "$qemu" 2>/dev/null; do
	if ((SECONDS - start > minutes * 60)); then
		tail -n 40 "$tmp/console"
		die "the virtual machine did not end within $minutes minutes"
	fi
	sleep 1
done
wait "$qemu" || true
qemu=
wait
echo "vm: $((SECONDS - start)) s by $accel"
status=$(tr -d '\r' <"$tmp/results" | sed -n 's/^vm: status //p' | tail -n 1)
if [[ -z $status ]]; then
	tail -n 40 "$tmp/console"
	die "the virtual machine ended without a result"
fi
exit "$status"
