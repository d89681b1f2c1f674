package memory

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLimit(t *testing.T) {
	t.Parallel()
	const meminfo = "MemFree: 1 kB\nMemTotal:       2097152 kB\n"
	for name, tc := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"nothing":          {nil, 2 << 30},
		"machine":          {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n"}, 2 << 30},
		"no number":        {map[string]string{"proc/meminfo": "MemTotal: many kB\n"}, 2 << 30},
		"version 2":        {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "536870912\n"}, 512 << 20},
		"version 2, own":   {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1048576\n"}, 1 << 20},
		"version 1":        {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "5:cpu:/x\n4:hugetlb,memory:/x/y\n", "sys/fs/cgroup/memory/x/y/memory.limit_in_bytes": "1073741824\n"}, 1 << 30},
		"version 1, none":  {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 2 << 30},
		"larger than all":  {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "1099511627776\n"}, 2 << 30},
		"path that climbs": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/../../x\n", "memory.max": "1\n"}, 2 << 30},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for path, text := range tc.files {
				path = filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := limitIn(root); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
	if got := Limit(); got < 1<<20 {
		t.Errorf("this process may use %d bytes", got)
	}
}

func TestDefaultTotal(t *testing.T) {
	t.Parallel()
	for limit, want := range map[int64]int64{1: 1 << 20, 512 << 20: 128 << 20, 2 << 30: 512 << 20, 64 << 30: 1 << 30} {
		if got := DefaultTotal(limit); got != want {
			t.Errorf("of %d: %d, want %d", limit, got, want)
		}
	}
}
