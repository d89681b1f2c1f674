package memory

import (
	"math"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// Limit returns how many bytes of memory this process may use: what its control group,
// or one above it, allows, or else what the machine has.
func Limit() int64 { return limitIn("/") }

// unknownLimit is assumed where nothing can be read.
const unknownLimit = 2 << 30

// limitIn is Limit for a machine whose root directory is elsewhere.
func limitIn(root string) int64 {
	limit := int64(math.MaxInt64)
	groups, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup")) // without it the machine decides
	for line := range strings.Lines(string(groups)) {
		// ID:CONTROLLERS:PATH; version 2 names no controllers.
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, _ := strings.Cut(rest, ":")
		switch {
		case controllers == "":
			limit = min(limit, groupLimit(filepath.Join(root, "sys/fs/cgroup"), group, "memory.max"))
		case strings.Contains(","+controllers+",", ",memory,"):
			limit = min(limit, groupLimit(filepath.Join(root, "sys/fs/cgroup/memory"), group, "memory.limit_in_bytes"))
		}
	}
	limit = min(limit, machineMemory(root))
	if limit == math.MaxInt64 {
		return unknownLimit
	}
	return limit
}

// groupLimit returns the lowest limit of a control group and those above it.
func groupLimit(mount, group, file string) int64 {
	limit := int64(math.MaxInt64)
	for dir := path.Clean("/" + group); ; dir = path.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(mount, dir, file))
		if n, parseErr := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && parseErr == nil && n > 0 {
			limit = min(limit, n)
		}
		if dir == "/" {
			return limit
		}
	}
}

// machineMemory returns what /proc/meminfo says.
func machineMemory(root string) int64 {
	text, _ := os.ReadFile(filepath.Join(root, "proc/meminfo")) // without it there is another limit
	for line := range strings.Lines(string(text)) {
		rest, found := strings.CutPrefix(line, "MemTotal:")
		if !found {
			continue
		}
		if n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64); err == nil && n > 0 {
			return n << 10
		}
	}
	return math.MaxInt64
}
