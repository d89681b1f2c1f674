package cli

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// limitFlags are the flags that stand for limits.
type limitFlags struct{ memory, cpus, disk, pids string }

func (l *limitFlags) addFlags(f *pflag.FlagSet) {
	f.StringVarP(&l.memory, "memory", "m", "", "`SIZE` of memory, such as 512m or 2g (default 512m)")
	f.StringVar(&l.cpus, "cpus", "", "`NUMBER` of CPUs, 0.5 being half of one (default 1)")
	f.StringVar(&l.disk, "disk", "", "`SIZE` of what may be written (default 10g; without -v and not on the host image, half of the memory)")
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

// newNoticeOnce tells a user once, until the machine starts again, that a default
// limit is not enforced: each command would say the same.
func (a *app) newNoticeOnce(cfg config.Config) func(text string) {
	return func(text string) {
		path := filepath.Join(cfg.RuntimeDir, "noticed")
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return // said before, or no place to remember that it was
		}
		_ = f.Close()
		fmt.Fprintf(a.Err, "sandpit: %s (said once; sandpit run --stats shows which limits hold)\n", text)
	}
}
