package gvisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/subcommands"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/gomaxprocs"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"

	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/confine"
)

// kernelChildMain is the main function of gVisor's own processes. It does not
// return: gVisor exits by itself.
func kernelChildMain() int {
	limits, err := enterLimits(os.Args)
	err = errors.Join(err, closeInherited(os.Args))
	if err != nil { // better no sandbox than one without its limits
		fmt.Fprintln(os.Stderr, "sandpit:", err)
		return 1
	}
	os.Args = limits.setFlags(os.Args)
	switch filepath.Base(os.Args[0]) {
	case kernelRole:
		if os.Args, err = useLayerFile(os.Args); err == nil {
			os.Args, err = moveConduit(os.Args)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "sandpit:", err)
			return 1
		}
		_ = confine.AllowCPUID() // without it sandboxes are slower
		gomaxprocs.Add(limits.extraProcessors())
		limits.limitHeap()
		delayGC()
	case goferRole:
		if err := confine.FileServer(); err != nil {
			fmt.Fprintln(os.Stderr, "sandpit:", err)
			return 1
		}
	}
	cli.Run(nil, map[util.SubCommand]string{
		new(sentrycmd.Boot):   "internal",
		new(cmd.Gofer):        "internal",
		new(sentrycmd.Umount): "internal",
	}, []subcommands.Command{})
	return 1
}

// useLayerFile has a layer in memory be in a file of its own, which is what one on
// disk is too. gVisor would put it among the programs' memory, and can save a layer by
// itself only if it is not there. Only a gofer's presence would have it do so.
func useLayerFile(args []string) ([]string, error) {
	const mounts, inMemory, inFile = "--gofer-mount-confs=", "erofs:memory", "erofs:anon"
	i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, mounts+inMemory) }) // the root is first
	if i < 0 {
		return args, nil // on disk, or done before this process started itself again
	}
	fd, err := unix.MemfdCreate("layer", 0) // for that it stays open
	if err != nil {
		return nil, fmt.Errorf("make a file for the layer: %w", err)
	}
	pgalloc.IMAWorkAroundForMemFile(uintptr(fd))
	args = slices.Clone(args)
	args[i] = mounts + inFile + strings.TrimPrefix(args[i], mounts+inMemory)
	return slices.Insert(args, i, "--gofer-filestore-fds="+strconv.Itoa(fd)), nil
}

// conduitNumber is the descriptor of the conduit in every kernel process. gVisor's saved
// sockets know theirs by its number, and so find it again in another process. It is
// above all that gVisor gives to a kernel, and below what a process may have at least.
const conduitNumber = 300

// moveConduit moves the conduit, which is the only file that is passed on, there.
func moveConduit(args []string) ([]string, error) {
	const flag = "--pass-fd="
	i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, flag) })
	if i < 0 {
		return args, nil
	}
	own, inside, _ := strings.Cut(strings.TrimPrefix(args[i], flag), ":")
	fd, err := strconv.Atoi(own)
	if err != nil {
		return nil, fmt.Errorf("find the conduit: %w", err)
	}
	if fd == conduitNumber {
		return args, nil // done before this process started itself again
	}
	if err := unix.Dup3(fd, conduitNumber, 0); err != nil { // for that it stays open
		return nil, fmt.Errorf("move the conduit: %w", err)
	}
	_ = unix.Close(fd) // there are two
	args = slices.Clone(args)
	args[i] = flag + strconv.Itoa(conduitNumber) + ":" + inside
	return args, nil
}

// delayGC keeps the garbage collector from running while the kernel starts,
// which would take a seventh of all the time, and gives back afterwards what is too
// much. It runs all the same when there is too much for the sandbox: limitHeap.
func delayGC() {
	usual := debug.SetGCPercent(-1)
	time.AfterFunc(time.Second, func() {
		debug.SetGCPercent(usual)
		debug.FreeOSMemory()
	})
}

// closeInherited closes what this process got from the engine and was not meant
// for it. gVisor keeps connections to each sandbox open that are not marked to be
// closed in new processes: a kernel process would hold those of its neighbours,
// and soon there would be no room for its own, which have low numbers.
func closeInherited(args []string) error {
	highest := highestFlagFD(args)
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil || fd <= highest {
			continue
		}
		// What is marked is this process's own, opened since it started.
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd) // it is not this process's: nothing of it can be lost
		}
	}
	return nil
}

var fdFlagPattern = regexp.MustCompile("^--[a-z-]*fds?=([0-9,:-]+)$")

// highestFlagFD returns the highest descriptor that the arguments of a gVisor
// process name: --spec-fd=11, --io-fds=3,4, --pass-fd=15:3 where the second number
// is that of the sandbox.
func highestFlagFD(args []string) int {
	highest := 2
	for _, a := range args {
		m := fdFlagPattern.FindStringSubmatch(a)
		if m == nil {
			continue
		}
		for list := range strings.SplitSeq(m[1], ",") {
			own, _, _ := strings.Cut(list, ":")
			if fd, err := strconv.Atoi(own); err == nil {
				highest = max(highest, fd)
			}
		}
	}
	return highest
}
