package compare_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

func identityProbes() []probe {
	return []probe{
		{
			name: "who",
			want: "uid=0(root) gid=0(root)\nroot\n",
			do:   sh("id; whoami"),
		},
		{
			name: "another user",
			want: "uid=1000(app) gid=1000(app)\n",
			do:   command(sandpit.Command{Args: []string{"id"}, User: "app"}),
		},
		{
			name: "a user by numbers",
			want: "uid=1000(app) gid=1000(app)\n",
			do:   command(sandpit.Command{Args: []string{"id"}, User: "1000:1000"}),
		},
		{
			name: "a user without a name",
			want: "uid=4242 gid=4242\n",
			do:   command(sandpit.Command{Args: []string{"id"}, User: "4242"}),
		},
		{
			name: "a missing user",
			want: "refused: invalid",
			do:   command(sandpit.Command{Args: []string{"id"}, User: "nobody-of-that-name"}),
		},
		{
			name: "the sandbox's own user",
			want: "uid=1000(app) gid=1000(app)\n/workspace\n/home/app app\n-rw-r--r--\n",
			do:   shIn(sandpit.Spec{User: "app"}, "id; pwd; echo $HOME $USER; touch mine && ls -l mine | cut -c1-10"),
		},
		{
			name: "where",
			want: "/workspace\ndrwxr-xr-x\n",
			do:   sh("pwd; ls -ld . | cut -c1-10"),
		},
		{
			name: "another directory",
			want: "/data\n",
			do:   command(sandpit.Command{Args: []string{"pwd"}, Dir: "/data"}),
		},
		{
			name: "a directory that is not there",
			want: "refused: invalid",
			do:   command(sandpit.Command{Args: []string{"pwd"}, Dir: "/no/such"}),
		},
		{
			name: "a file as directory",
			want: "refused: invalid",
			do:   command(sandpit.Command{Args: []string{"pwd"}, Dir: "/data/text"}),
		},
		{
			name: "a working directory of its own",
			want: "/deep/er/down\ndrwxr-xr-x\n",
			do:   shIn(sandpit.Spec{WorkDir: "/deep/er/down"}, "pwd; ls -ld . | cut -c1-10"),
		},
		{
			name: "the environment",
			want: "BOTH=the box\nHOME=/root\nLOGNAME=root\nOF_THE_BOX=yes\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nPWD=/workspace\nSHELL=/bin/sh\nSHLVL=1\nUSER=root\n",
			do:   sh("env | sort"),
		},
		{
			name: "another user's environment",
			want: "BOTH=the box\nHOME=/home/app\nLOGNAME=app\nOF_THE_BOX=yes\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nPWD=/workspace\nSHELL=/bin/sh\nSHLVL=1\nUSER=app\n",
			do:   command(sandpit.Command{Args: []string{"sh", "-c", "env | sort"}, User: "app"}),
		},
		{
			name: "a command's environment",
			want: "yes the command a=b c\n",
			do:   command(sandpit.Command{Args: []string{"sh", "-c", "echo $OF_THE_BOX $BOTH $MINE"}, Env: map[string]string{"BOTH": "the command", "MINE": "a=b c"}}),
		},
		{
			name: "the host name",
			want: "sandpit\nsandpit\n",
			do:   sh("hostname; cat /proc/sys/kernel/hostname"),
		},
		{
			name:   "another host name",
			gvisor: "other-name\nstderr: cat: can't open '/etc/hostname': No such file or directory\ngrep: /etc/hosts: No such file or directory\n[exit status 2, code 2]", docker: "other-name\nother-name\n0\n[exit status 1, code 1]",
			why: "gVisor's sandboxes have only the files of the image; Docker makes `/etc/hostname`, `/etc/hosts` and `/etc/resolv.conf`",
			do:  shIn(sandpit.Spec{Hostname: "other-name"}, "hostname; cat /etc/hostname; grep -c other-name /etc/hosts"),
		},
		{
			name: "the mask of permissions",
			want: "0022\n",
			do:   sh("umask"),
		},
		{
			name: "niceness",
			want: "0\n",
			do:   sh("awk '{print $19}' /proc/self/stat"),
		},
		{
			name: "groups",
			want: "0\n",
			do:   sh("id -G"),
		},
		{
			name: "groups of another user",
			want: "1000\n",
			do:   command(sandpit.Command{Args: []string{"id", "-G"}, User: "app"}),
		},
		{
			name: "the session and group of a command",
			want: "its own\n",
			do:   sh(`set -- $(cat /proc/self/stat); [ $6 != 0 ] && [ $5 != 0 ] && echo its own`),
		},
		{
			name: "the time zone",
			want: "UTC\n",
			do:   sh("date +%Z"),
		},
	}
}

func kernelProbes() []probe {
	return []probe{
		{
			name: "the system's name",
			want: "Linux MACHINE GNU/Linux\n",
			do:   sh("uname -s -m -o | sed s/$(uname -m)/MACHINE/"),
		},
		{
			name:   "the kernel release is the machine's",
			gvisor: "no", docker: "yes",
			why: "gVisor is a kernel of its own; a container shares the machine's",
			do:  sameRelease,
		},
		{
			name:   "the kernel log",
			gvisor: "gVisor\n", docker: "something else\n",
			why: "gVisor writes a kernel log of its own; a container cannot read the machine's log, or reads it unchanged",
			do:  sh("dmesg 2>&1 | grep -q -i gvisor && echo gVisor || echo something else"),
		},
		{
			name: "the first process",
			want: "sandpit-guest\n",
			do:   sh("cat /proc/1/comm"),
		},
		{
			name:   "processors seen",
			gvisor: "those it may use", docker: "the machine's",
			why: "gVisor shows as many as the limit allows; a container sees all and gets a share of their time",
			do:  processors,
		},
		{
			name:   "memory seen",
			gvisor: "what it may use", docker: "the machine's",
			why: "gVisor shows the limit; programs in a container must read their control group",
			do:  memorySeen,
		},
		{
			name: "/proc/cpuinfo and nproc agree",
			want: "yes\n",
			do:   sh("[ $(grep -c ^processor /proc/cpuinfo) = $(nproc) ] && echo yes || echo no"),
		},
		{
			name: "swap seen",
			want: "none\n",
			do:   sh("grep -q 'SwapTotal: *0 kB' /proc/meminfo && echo none || echo some or unknown"),
		},
		{
			name: "the load",
			want: "five words\n",
			do:   sh("[ $(wc -w < /proc/loadavg) = 5 ] && echo five words"),
		},
		{
			name:   "the time since the start",
			gvisor: "its own", docker: "the machine's",
			why: "gVisor's kernel starts with the sandbox",
			do:  uptime,
		},
		{
			name: "entries of /proc/self",
			want: "[nothing]",
			do:   sh("cd /proc/self; for f in auxv cgroup cmdline comm cwd environ exe fd fdinfo io limits maps mem mountinfo mounts net ns oom_score root smaps stat statm status task uid_map;  do [ -e $f ] || echo no $f; done"),
		},
		{
			name:   "entries of /proc",
			gvisor: "no swaps\nno vmstat\n", docker: "[nothing]",
			why: "gVisor has the files that programs read most",
			do:  sh("cd /proc; for f in cmdline cpuinfo filesystems loadavg meminfo mounts net stat swaps sys uptime version vmstat; do [ -e $f ] || echo no $f; done"),
		},
		{
			name:   "devices",
			gvisor: "no console\nno kmsg\nno mem\nno mqueue\nno disks\n", docker: "no console\nno fuse\nno kmsg\nno mem\nno net\nno disks\n",
			why: "each creates a few devices of its own; neither shows devices of the machine",
			do:  sh("cd /dev; for f in console fd full fuse kmsg mem mqueue net null ptmx pts random shm stderr stdin stdout tty urandom zero; do [ -e $f ] || echo no $f; done; [ -e sda ] || [ -e vda ] && echo disks || echo no disks"),
		},
		{
			name: "randomness",
			want: "1000\n16\n",
			do:   sh("head -c 1000 /dev/urandom | wc -c; head -c 16 /dev/random | wc -c"),
		},
		{
			name: "/dev/full",
			want: "stderr: sh: write error: No space left on device\n[exit status 1, code 1]",
			do:   sh("echo x > /dev/full"),
		},
		{
			name: "the kind of the root",
			want: "overlay\n",
			do:   sh("awk '$2==\"/\"{print $3}' /proc/mounts"),
		},
		{
			name:   "what is mounted",
			gvisor: "/\n/.sandpit\n/dev\n/proc\n/sys\n", docker: "/\n/.sandpit\n/dev\n/etc/hostname\n/etc/hosts\n/etc/resolv.conf\n/proc\n/sys\n",
			why: "Docker generates these files and mounts them",
			do:  sh("awk '{print $2}' /proc/mounts | grep -v -e ^/proc/ -e ^/sys/ -e ^/data -e ^/dev/ | sort -u"),
		},
		{
			name: "/sys is read only",
			want: "yes\n",
			do:   sh("touch /sys/x 2>/dev/null || echo yes"),
		},
		{
			name: "control groups seen",
			want: "yes\n",
			do:   sh("ls -A /sys/fs/cgroup 2>/dev/null | head -n 1 | grep -q . && echo yes || echo no"),
		},
		{
			name:   "names of the machine's disks",
			gvisor: "not seen\n", docker: "seen\n",
			why: "a container's `/sys` shows the machine, read-only",
			do:  sh("ls /sys/block 2>/dev/null | grep -q . && echo seen || echo not seen"),
		},
		{
			name: "the machine's firmware",
			want: "not seen\n",
			do:   sh("[ -e /sys/firmware/dmi ] && ls /sys/firmware/dmi 2>/dev/null | grep -q . && echo seen || echo not seen"),
		},
		{
			name: "modules",
			want: "not seen\n",
			do:   sh("[ -s /proc/modules ] && echo seen || echo not seen"),
		},
		{
			name: "namespaces of a process",
			want: "cgroup ipc mnt net pid user uts ",
			do:   sh("cd /proc/self/ns; for f in cgroup ipc mnt net pid user uts; do [ -e $f ] && echo $f; done | tr '\\n' ' '"),
		},
		{
			name:   "open files allowed",
			gvisor: "65536\n65536\n", docker: "8192\n8192\n",
			why: "each provider has its own default; Docker's can be set",
			do:  sh("ulimit -Sn; ulimit -Hn"),
		},
		{
			name: "core files allowed",
			want: "0\n",
			do:   sh("ulimit -c"),
		},
		{
			name: "processes allowed by rlimit",
			want: "told\n",
			do:   sh("ulimit -u >/dev/null && echo told"),
		},
		{
			name: "shared memory",
			want: "x\n",
			do:   sh("echo x > /dev/shm/x && cat /dev/shm/x; rm /dev/shm/x"),
		},
		{
			name: "a process's own name",
			want: "cat\n/bin/busybox\n",
			do:   sh("cat /proc/self/comm; readlink /proc/self/exe"),
		},
		{
			name: "vm.overcommit_memory",
			want: "told\n",
			do:   sh("[ -e /proc/sys/vm/overcommit_memory ] && echo told || echo not told"),
		},
		{
			name: "kernel.pid_max",
			want: "told\n",
			do:   sh("[ -e /proc/sys/kernel/pid_max ] && echo told || echo not told"),
		},
		{
			name: "/proc/sys/kernel/random/uuid",
			want: "37\n",
			do:   sh("wc -c < /proc/sys/kernel/random/uuid"),
		},
		{
			name: "the boot id",
			want: "told\n",
			do:   sh("[ -e /proc/sys/kernel/random/boot_id ] && echo told || echo not told"),
		},
	}
}

// sameRelease asks whether the release is that of the machine's kernel.
func sameRelease(t *testing.T, p *place) string {
	t.Helper()
	own, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	return yes(run(t, p.box, sandpit.Command{Args: []string{"uname", "-r"}}) == string(own))
}

// uptime asks whose time since the start a sandbox sees.
func uptime(t *testing.T, p *place) string {
	t.Helper()
	own, err := os.ReadFile("/proc/uptime")
	if err != nil {
		t.Fatal(err)
	}
	var ours, theirs float64
	if _, err := fmt.Sscan(string(own), &ours); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(run(t, p.box, sandpit.Command{Args: []string{"cat", "/proc/uptime"}}), &theirs); err != nil {
		t.Fatal(err)
	}
	if theirs < ours {
		return "its own"
	}
	return "the machine's"
}

func yes(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

// processors asks how many processors a sandbox that may use one sees.
func processors(t *testing.T, p *place) string {
	t.Helper()
	box := p.create(t, sandpit.Spec{Resources: sandpit.Resources{CPUs: 1}})
	got := strings.TrimSpace(run(t, box, sandpit.Command{Args: []string{"nproc"}}))
	switch {
	case runtime.NumCPU() == 1:
		t.Skip("this machine has one processor")
	case got == "1":
		return "those it may use"
	case got == strconv.Itoa(runtime.NumCPU()):
		return "the machine's"
	}
	return got
}

// memorySeen asks how much memory a sandbox that may use 128 MiB sees.
func memorySeen(t *testing.T, p *place) string {
	t.Helper()
	box := p.create(t, sandpit.Spec{Resources: sandpit.Resources{Memory: 128 << 20}})
	got := strings.TrimSpace(run(t, box, sandpit.Command{Args: []string{"awk", "/MemTotal/{print $2}", "/proc/meminfo"}}))
	own, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case got == strconv.Itoa(128<<10):
		return "what it may use"
	case strings.Fields(string(own))[1] == got:
		return "the machine's"
	}
	return got
}
