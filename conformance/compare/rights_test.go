package compare_test

import (
	"testing"

	"github.com/sandpit-dev/sandpit"
)

func rightProbes() []probe {
	may := func(script string) func(*testing.T, *place) string {
		return sh("{ " + script + "; } >/dev/null 2>&1 && echo may || echo may not")
	}
	return []probe{
		{
			name: "root may change owners",
			want: "may\n",
			do:   may("touch /tmp/o && chown app:app /tmp/o && [ $(stat -c %U /tmp/o) = app ] && rm /tmp/o"),
		},
		{
			name: "root may read what others have closed",
			want: "may\n",
			do:   may("echo x > /tmp/c && chown app /tmp/c && chmod 0 /tmp/c && cat /tmp/c && rm -f /tmp/c"),
		},
		{
			name: "root may become another user",
			want: "may\n",
			do:   may("su app -c true"),
		},
		{
			name: "others may become root",
			want: "may not\n",
			do:   command(sandpit.Command{Args: []string{"sh", "-c", "su -c id 2>/dev/null </dev/null || echo may not"}, User: "app"}),
		},
		{
			name: "others may write to the root",
			want: "touch: /x: Permission denied\nmay not\n",
			do:   command(sandpit.Command{Args: []string{"sh", "-c", "touch /x 2>&1 || echo may not"}, User: "app"}),
		},
		{
			name: "others may kill root's processes",
			want: "may not\n",
			do:   command(sandpit.Command{Args: []string{"sh", "-c", "kill -0 1 2>/dev/null && echo may || echo may not"}, User: "app"}),
		},
		{
			name:   "root may mount",
			gvisor: "may\n", docker: "may not\n",
			why: "root in a gVisor sandbox has rights over its own kernel only; a mount in a container would be the machine's, and is forbidden",
			do:  may("mkdir -p /tmp/m && mount -t tmpfs none /tmp/m && umount /tmp/m"),
		},
		{
			name:   "root may make devices",
			gvisor: "may\n", docker: "may not\n",
			why: "in gVisor they are devices of its own kernel; in a container they would be the machine's",
			do:  may("mknod /tmp/d c 1 3 && rm /tmp/d"),
		},
		{
			name: "root may make fifos",
			want: "may\n",
			do:   may("mknod /tmp/p p && rm /tmp/p"),
		},
		{
			name:   "root may change its root",
			gvisor: "may\n", docker: "may not\n",
			why: "no such capability in a container",
			do:  may("chroot / true"),
		},
		{
			name:   "root may make namespaces",
			gvisor: "may\n", docker: "may not\n",
			why: "the same as for mounts",
			do:  may("unshare -m true"),
		},
		{
			name:   "others may make user namespaces",
			gvisor: "may\n", docker: "may not\n",
			why: "in gVisor they belong to its own kernel; Docker's system call filter forbids them",
			do:  command(sandpit.Command{Args: []string{"sh", "-c", "unshare -U true 2>/dev/null && echo may || echo may not"}, User: "app"}),
		},
		{
			name: "root may set the clock",
			want: "may not\n",
			do:   may("! date -s @$(date +%s) 2>&1 | grep -q .an.t.set"),
		},
		{
			name:   "root may set the host name",
			gvisor: "may\n", docker: "may not\n",
			why: "no such capability in a container",
			do:  may("hostname $(hostname)"),
		},
		{
			name: "root may change kernel settings",
			want: "may not\n",
			do:   may("echo 0 > /proc/sys/kernel/panic"),
		},
		{
			name:   "root may raise its priority",
			gvisor: "may\n", docker: "may not\n",
			why: "no such capability in a container; in gVisor it changes nothing for others",
			do:  may("renice -n -5 -p $$"),
		},
		{
			name: "root may open raw sockets",
			want: "may not\n",
			do:   may("ping -c 1 -W 1 127.0.0.1"),
		},
		{
			name: "root may listen on port 80",
			want: "may\n",
			do:   may("timeout 1 httpd -f -p 127.0.0.1:80; [ $? = 143 ]"),
		},
		{
			name:   "root may raise the limit of open files",
			gvisor: "may\n", docker: "may not\n",
			why: "no such capability in a container",
			do:  may("ulimit -Hn 1000000"),
		},
		{
			name: "root may load modules",
			want: "may not\n",
			do:   may("insmod /data/junk"),
		},
		{
			name:   "root may see the first process's environment",
			gvisor: "may\n", docker: "may not\n",
			why: "in a container, the guest hides its environment, memory and descriptors from root; in gVisor they contain no secret",
			do:  may("cat /proc/1/environ"),
		},
		{
			name:   "set-user-ID programs get their owner's rights",
			gvisor: "may\n", docker: "may not\n",
			why: "in gVisor these are rights over the sandbox only, and sudo and su need them; programs in a container cannot gain rights",
			do: may(`cp /etc/passwd /tmp/passwd && sed -i 's/^root:[^:]*:/root::/' /etc/passwd && cp /bin/busybox /tmp/su && chmod 4755 /tmp/su && \
[ "$(su app -c '/tmp/su -c "id -u" root')" = 0 ]; s=$?; cat /tmp/passwd > /etc/passwd; rm -f /tmp/su /tmp/passwd; (exit $s)`),
		},
		{
			name:   "no new privileges",
			gvisor: "0\n", docker: "1\n",
			why: "Docker sets this flag of the machine's kernel so that set-user-ID programs gain no rights",
			do:  sh("awk '/NoNewPrivs/{print $2}' /proc/self/status"),
		},
		{
			name:   "a system call filter is visible",
			gvisor: "0\n", docker: "2\n",
			why: "gVisor's filter is on the sandbox's kernel, outside; a container's is on its programs",
			do:  sh("awk '/^Seccomp:/{print $2}' /proc/self/status"),
		},
		{
			name:   "capabilities",
			gvisor: "00000000bfecdfff\n", docker: "00000000000004fb\n",
			why: "in gVisor they apply to the sandbox's own kernel; in a container they apply to the machine's, so it has eight",
			do:  sh("awk '/CapEff/{print $2}' /proc/self/status"),
		},
	}
}
