package guest

import (
	"bufio"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// metrics is the body of /metrics. Unknown values are 0.
type metrics struct {
	Timestamp int64   `json:"ts"` // seconds since 1970
	CPUCount  int     `json:"cpu_count"`
	CPUUsed   float64 `json:"cpu_used_pct"` // since the last call, of all CPUs together

	MemTotal    uint64 `json:"mem_total"` // bytes
	MemUsed     uint64 `json:"mem_used"`
	MemCache    uint64 `json:"mem_cache"`
	MemTotalMiB uint64 `json:"mem_total_mib"`
	MemUsedMiB  uint64 `json:"mem_used_mib"`

	DiskTotal uint64 `json:"disk_total"` // bytes
	DiskUsed  uint64 `json:"disk_used"`
}

// cpuMeter turns counters into a percentage.
type cpuMeter struct {
	mu         sync.Mutex
	busy, all  uint64
	lastResult float64
}

func (g *Guest) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	m := metrics{Timestamp: time.Now().Unix(), CPUCount: runtime.NumCPU(), CPUUsed: g.cpu.measureLoad()}
	memory := readMemory()
	m.MemTotal, m.MemCache = memory["MemTotal"], memory["Cached"]
	m.MemUsed = m.MemTotal - min(m.MemTotal, memory["MemAvailable"])
	m.MemTotalMiB, m.MemUsedMiB = m.MemTotal>>20, m.MemUsed>>20
	var disk syscall.Statfs_t
	if syscall.Statfs("/", &disk) == nil {
		m.DiskTotal = disk.Blocks * uint64(disk.Bsize)
		m.DiskUsed = (disk.Blocks - disk.Bfree) * uint64(disk.Bsize)
	}
	writeJSON(w, http.StatusOK, m)
}

// measureLoad returns how busy the CPUs were since the last call, in percent.
func (c *cpuMeter) measureLoad() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	busy, all := readCPU()
	if all > c.all && busy >= c.busy {
		c.lastResult = 100 * float64(busy-c.busy) / float64(all-c.all)
	}
	c.busy, c.all = busy, all
	return c.lastResult
}

// readCPU returns the ticks that all CPUs were busy, and all their ticks.
func readCPU() (busy, all uint64) {
	eachField("/proc/stat", func(fields []string) bool {
		if fields[0] != "cpu" {
			return true
		}
		for i, field := range fields[1:] {
			ticks, err := strconv.ParseUint(field, 10, 64)
			if err != nil {
				continue
			}
			all += ticks
			if i != 3 && i != 4 { // idle, and idle while waiting for a disk
				busy += ticks
			}
		}
		return false
	})
	return busy, all
}

// readMemory returns the values of /proc/meminfo in bytes.
func readMemory() map[string]uint64 {
	values := make(map[string]uint64)
	eachField("/proc/meminfo", func(fields []string) bool {
		if len(fields) >= 2 {
			if kib, err := strconv.ParseUint(fields[1], 10, 54); err == nil {
				values[strings.TrimSuffix(fields[0], ":")] = kib << 10
			}
		}
		return true
	})
	return values
}

// eachField calls f with the fields of each line that has some, until it returns
// false. A file that cannot be read has no lines.
func eachField(file string, f func(fields []string) bool) {
	r, err := os.Open(file)
	if err != nil {
		return
	}
	defer r.Close()
	scanner := bufio.NewScanner(r)
	for scanner.Scan() {
		if fields := strings.Fields(scanner.Text()); len(fields) > 0 && !f(fields) {
			return
		}
	}
}
