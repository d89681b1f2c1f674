package cli

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// limitFlags are the flags of resource limits.
type limitFlags struct{ memory, cpus, disk, pids string }

func (l *limitFlags) addFlags(f *pflag.FlagSet) {
	f.StringVarP(&l.memory, "memory", "m", "", "`SIZE` of memory, such as 512m or 2g (default 512m)")
	f.StringVar(&l.cpus, "cpus", "", "`NUMBER` of CPUs, such as 0.5 (default 1)")
	f.StringVar(&l.disk, "disk", "", "`SIZE` of the disk space for writes (default 10g; without -v and not on the host image, half of the memory)")
	f.StringVar(&l.pids, "pids", "", "`NUMBER` of processes and threads (default 1024)")
}

func (l *limitFlags) toOverrides() []config.Override {
	var list []config.Override
	for _, o := range []config.Override{
		{Flag: "--memory", Key: config.KeyMemoryLimit, Value: l.memory},
		{Flag: "--cpus", Key: config.KeyCPULimit, Value: l.cpus},
		{Flag: "--disk", Key: config.KeyDiskLimit, Value: l.disk},
		{Flag: "--pids", Key: config.KeyPIDsLimit, Value: l.pids},
	} {
		if o.Value != "" {
			list = append(list, o)
		}
	}
	return list
}

// newNoticeOnce returns a function that tells the user once, until the machine restarts, that a
// default limit is not enforced: each command would repeat it.
func (a *app) newNoticeOnce(cfg config.Config) func(text string) {
	return func(text string) {
		path := filepath.Join(cfg.RuntimeDir, "noticed")
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return // reported before, or it cannot be recorded
		}
		_ = f.Close()
		fmt.Fprintf(a.Err, "sandpit: %s (reported once; sandpit run --stats shows which limits are enforced)\n", text)
	}
}
