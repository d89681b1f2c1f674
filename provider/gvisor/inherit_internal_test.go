package gvisor

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNoPipeIsInherited looks for pipes that this program opened by being started, which
// the programs that it starts must not have. Both ends tell such a pipe from one that
// was inherited.
func TestNoPipeIsInherited(t *testing.T) {
	t.Parallel()
	if goferPipeRead <= unix.Stderr || goferPipeWrite <= unix.Stderr {
		t.Errorf("gVisor's pipe has the descriptors %d and %d: it has another name now, or is gone", goferPipeRead, goferPipeWrite)
	}
	ends := make(map[string][]string) // descriptors by pipe
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil || len(links) == 0 {
		t.Fatalf("descriptors: %q, %v", links, err)
	}
	for _, link := range links {
		to, err := os.Readlink(link)
		fd, atoiErr := strconv.Atoi(filepath.Base(link))
		if err != nil || atoiErr != nil || fd <= unix.Stderr || !strings.HasPrefix(to, "pipe:") {
			continue // also one that was closed meanwhile
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			ends[to] = append(ends[to], link)
		}
	}
	for pipe, fds := range ends {
		if len(fds) > 1 {
			t.Errorf("%s is left open to other programs: %q", pipe, fds)
		}
	}
}
