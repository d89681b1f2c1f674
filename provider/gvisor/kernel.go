package gvisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
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

	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/confine"
)

// kernelChildMain is the main function of gVisor's own processes. It does not return, because
// gVisor exits itself.
func kernelChildMain() int {
	runtime.MemProfileRate = 0 // each sample touches a page of a large table, and nothing reads the profile
	limits, err := enterLimits(os.Args)
	err = errors.Join(err, closeInherited(os.Args))
	if err != nil { // a sandbox must not run without its limits
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
		_ = confine.AllowCPUID() // on failure sandboxes are only slower
		gomaxprocs.Add(limits.extraProcessors())
		limits.limitHeap()
		delayGC()
		awaitForgetSignal()
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

// useLayerFile has a layer in memory use a file of its own, as a layer on disk does. gVisor would
// put it among the programs' memory, and can save it separately only if it is not there. gVisor
// itself uses such a file only with a gofer.
func useLayerFile(args []string) ([]string, error) {
	const mounts, inMemory, inFile = "--gofer-mount-confs=", "erofs:memory", "erofs:anon"
	i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, mounts+inMemory) }) // the root is first
	if i < 0 {
		return args, nil // on disk, or done before this process started itself again
	}
	fd, err := unix.MemfdCreate("layer", 0) // stays open in new processes
	if err != nil {
		return nil, fmt.Errorf("create a file for the layer: %w", err)
	}
	pgalloc.IMAWorkAroundForMemFile(uintptr(fd))
	args = slices.Clone(args)
	args[i] = mounts + inFile + strings.TrimPrefix(args[i], mounts+inMemory)
	return slices.Insert(args, i, "--gofer-filestore-fds="+strconv.Itoa(fd)), nil
}

// conduitNumber is the descriptor of the conduit in every kernel process. gVisor's saved sockets
// refer to theirs by number, and so find it in another process. It is above all descriptors that
// gVisor gives to a kernel, and below the minimum limit of descriptors of a process.
const conduitNumber = 300

// moveConduit moves the conduit, the only passed file, to conduitNumber.
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
	if err := unix.Dup3(fd, conduitNumber, 0); err != nil { // stays open in new processes
		return nil, fmt.Errorf("move the conduit: %w", err)
	}
	_ = unix.Close(fd) // the copy remains
	args = slices.Clone(args)
	args[i] = flag + strconv.Itoa(conduitNumber) + ":" + inside
	return args, nil
}

// delayGC keeps the garbage collector from running while the kernel starts, which would take a
// seventh of the time, and releases memory afterwards. It runs nevertheless when there is too much
// garbage for the sandbox: see limitHeap.
func delayGC() {
	usual := debug.SetGCPercent(-1)
	time.AfterFunc(time.Second, func() {
		debug.SetGCPercent(usual)
		debug.FreeOSMemory()
	})
}

// closeInherited closes what this process inherited from the engine unintentionally. gVisor has
// connections to each sandbox open that are not marked as close-on-exec: a kernel process would
// hold those of other sandboxes, and soon there would be no low numbers for its own.
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
		// Marked descriptors were opened by this process.
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd) // not used by this process
		}
	}
	return nil
}

var fdFlagPattern = pattern.New("^--[a-z-]*fds?=([0-9,:-]+)$")

// highestFlagFD returns the highest descriptor that the arguments of a gVisor process name:
// --spec-fd=11, --io-fds=3,4, --pass-fd=15:3, where the second number is that of the sandbox.
func highestFlagFD(args []string) int {
	highest := 2
	for _, a := range args {
		m := fdFlagPattern().FindStringSubmatch(a)
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
