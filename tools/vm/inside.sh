#!/usr/bin/env bash
# Runs the tests in the virtual machine, as its root and as an ordinary user. run.sh
# reads the last line. A test that is skipped fails, unless skips.txt names it after the
# name of its run.
set -uo pipefail

failed=()
mkdir -p /run/results

# check NAME COMMAND...: the command must succeed.
check() {
	local name=$1 start=$SECONDS
	shift
	echo "=== $name"
	if ! "$@"; then
		failed+=("$name")
		echo "=== $name: FAILED"
	fi
	echo "=== $name: $((SECONDS - start)) s"
}

# as_root and as_user run a command in a unit whose control group is its own to change.
as_root() { systemd-run --quiet --wait --pipe --collect -p Delegate=yes -p RuntimeMaxSec=3600 "$@"; }

user_environment=(XDG_RUNTIME_DIR=/run/user/1000 HOME=/home/tester USER=tester)

as_user() {
	runuser -u tester -- env "${user_environment[@]}" systemd-run --user --quiet --wait --pipe --collect -p Delegate=yes -p RuntimeMaxSec=3600 "$@"
}

# tests NAME RUNNER PROGRAM PATTERN: runs tests, none of which may be skipped.
tests() {
	local name=$1 runner=$2 program=$3 pattern=$4 log=/run/results/$1 status skipped
	"$runner" --setenv=SANDPIT_REQUIRE=1 --setenv=SANDPIT_ENGINE=/payload/sandpit \
		--setenv=PATH=/usr/sbin:/usr/bin:/sbin:/bin --setenv=TMPDIR=/var/tmp --setenv=GOTRACEBACK=all \
		--working-directory=/var/tmp \
		"/payload/$program.test" -test.v -test.parallel=2 -test.timeout=50m -test.run="$pattern" 2>&1 | tee "$log" | grep -E '^ *(---|[a-z0-9_]+\.go:|panic|FAIL|PASS|ok)'
	status=${PIPESTATUS[0]}
	skipped=$(sed -n 's/^ *--- SKIP: \([^ ]*\).*/\1/p' "$log" | grep -vxF -f <(sed -n "s/^$name //p" /payload/skips.txt))
	if [[ -n $skipped ]]; then
		printf 'skipped, though everything must run here: %s\n' $skipped
		status=1
	fi
	if ! grep -q '^--- PASS' "$log"; then
		echo "no test has run"
		status=1
	fi
	return "$status"
}

is_version_2() {
	uname -sr
	systemctl --version | head -n 1
	grep cgroup /proc/self/mountinfo
	[[ $(stat -f -c %T /sys/fs/cgroup) == cgroup2fs ]] && ! grep -q -e ' - cgroup cgroup ' /proc/self/mountinfo
}

# doctor_says RUNNER: the program's own examination sees that all limits are enforced.
doctor_says() {
	local out
	out=$("$1" --setenv=HOME=/var/tmp --setenv=SANDPIT_RUNTIME_DIR=/var/tmp/doctor-$1 /payload/sandpit doctor 2>&1)
	echo "$out"
	grep -qF 'of memory, CPU, disk and processes are enforced' <<<"$out"
}

# hint_helps does as an ordinary user what the hint beside a refused limit says.
hint_helps() {
	local limited=(/payload/sandpit run --memory 64m --cpus 0.5 --) out command
	out=$(runuser -u tester -- env "${user_environment[@]}" "${limited[@]}" true 2>&1)
	echo "without it: $out"
	grep -q 'cannot be limited' <<<"$out" || return
	command=$(sed -n 's/^hint:.* \(systemd-run .*\) sandpit .*/\1/p' <<<"$out")
	echo "with: $command"
	# shellcheck disable=SC2086 # the hint is several words
	out=$(runuser -u tester -- env "${user_environment[@]}" $command "${limited[@]}" grep MemTotal /proc/meminfo 2>&1)
	echo "$out"
	grep -q '^MemTotal: *65536 kB' <<<"$out"
}

# service_limits starts the server as deploy/sandpit.service does, and looks at a
# sandbox's groups from outside: each limit is in its file, its kernel is there, the
# owner's group is above it and has no processes. Afterwards nothing is left.
service_limits() {
	local id group owner left
	ln -sf /payload/sandpit /usr/local/bin/sandpit
	cp /payload/sandpit.service /etc/systemd/system/
	systemctl daemon-reload && systemctl start sandpit || return
	id=$(HOME=/root sandpit create -q --memory 64m --cpus 0.5 --pids 100) || {
		journalctl --no-pager -o cat -u sandpit | tail -n 40
		return 1
	}
	group=$(find /sys/fs/cgroup -type d -name "$id" | head -n 1)
	[[ -n $group ]] || { echo "sandbox $id has no group"; find /sys/fs/cgroup -name 'sandpit-*'; return 1; }
	echo "$group"
	grep -H . "$group"/{memory.max,memory.high,cpu.max,pids.max,cgroup.procs}
	[[ $(cat "$group/cpu.max") == '50000 100000' ]] || return
	[[ $(cat "$group/memory.max") == $(((64 + 128) << 20)) ]] || return
	[[ $(cat "$group/pids.max") == 912 ]] || return # 4 for each task, and 512
	[[ -n $(cat "$group/cgroup.procs") ]] || return
	owner=$(dirname "$group")
	if [[ $(basename "$owner") != owner-* ]]; then
		echo "$owner is not the group of an owner"
		return 1
	fi
	grep -H . "$owner"/{cgroup.subtree_control,cpu.weight}
	[[ -z $(cat "$owner/cgroup.procs") ]] || return
	for controller in cpu memory pids; do
		grep -qw "$controller" "$owner/cgroup.subtree_control" || return
	done
	HOME=/root sandpit exec "$id" -- sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'
	grep -H -e nr_periods -e nr_throttled -e usage_usec "$group/cpu.stat"
	HOME=/root sandpit rm -f "$id" || return
	[[ ! -e $owner ]] || { echo "$owner is left"; return 1; }
	systemctl stop sandpit || return
	for _ in $(seq 60); do # the engine and its reaper end by themselves
		left=$(find /sys/fs/cgroup -type d -name 'sandpit-*' ! -name '*.service')
		[[ -n $left ]] || return 0
		sleep 1
	done
	echo "left: $left"
	return 1
}

user_manager_runs() {
	for _ in $(seq 300); do
		[[ -S /run/user/1000/systemd/private ]] && return
		sleep 1
	done
	echo "there is no service manager of the ordinary user"
	return 1
}

limits='^(TestMemoryLimit|TestMemoryOf|TestFilesInMemory|TestCPULimit|TestProcessesAreLimited|TestRootCannotLift|TestOpenFiles|TestDisk|TestLimits|TestStats|TestDefaultLimits|TestOwnersShare|TestOwnerGroup|TestSandboxParent|TestGroups|TestPlan|TestServerGroup|TestServer|TestEnforceable|TestFindings|TestPausedSandboxIsMeasured|TestMeasured|TestKernelIsTold|TestRemoveRecorded|TestLife$|TestOrphans|TestDeadEngines|TestSandboxOutlives|TestStopKeepsFiles|TestClaim$|TestSandboxesShareNoIDs)'

check "version 2 only" is_version_2
check "service manager of the ordinary user" user_manager_runs
check "doctor of root" doctor_says as_root
check "doctor of an ordinary user" doctor_says as_user
check "the hint" hint_helps
check "the server as a service" service_limits
check "limits, root" tests root as_root gvisor "$limits"
check "limits, ordinary user" tests user as_user gvisor "$limits"
check "memory of the server" tests memory as_root memory .
check "group of the server" tests survive as_root survive '^TestServerHasAGroup'

((${#failed[@]} == 0)) || printf 'vm: failed: %s\n' "${failed[@]}"
echo "vm: status $((${#failed[@]} > 0))"
sync
sleep 1
