package toolbox

import (
	"context"
	"encoding/hex"
	"math"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// machineHandlers serve the calls on the sandbox itself that need nothing of the server.
type machineHandlers struct{}

// registerMachine adds the calls on the sandbox itself.
func (s *Server) registerMachine(mux api.Router) {
	for pattern, h := range map[string]handler{
		"GET /user-home-dir":      machineHandlers{}.getHomeDir,
		"GET /work-dir":           machineHandlers{}.getWorkDir,
		"GET /project-dir":        machineHandlers{}.getWorkDir, // of clients before version 0.120
		"GET /version":            getVersion,
		"GET /port":               machineHandlers{}.listPorts,
		"GET /port/{port}/in-use": machineHandlers{}.checkPort,
		"GET /system/metrics":     getMetrics,
		"POST /env":               updateEnv,
		"POST /init":              machineHandlers{}.initialize,
		"/computeruse/":           machineHandlers{}.refuseComputerUse,
	} {
		s.handle(mux, pattern, h)
	}
}

// dirResponse names a directory.
type dirResponse struct {
	Dir string `json:"dir"`
}

func (machineHandlers) getHomeDir(ctx context.Context, c *call) error {
	dir, err := c.homeDir(ctx)
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, dirResponse{dir})
}

func (machineHandlers) getWorkDir(ctx context.Context, c *call) error {
	dir, err := c.workDir(ctx)
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, dirResponse{dir})
}

func getVersion(_ context.Context, c *call) error {
	return c.writeJSON(http.StatusOK, map[string]string{"version": c.server.o.Version})
}

// portList has the ports at which programs listen.
type portList struct {
	Ports []int `json:"ports"`
}

func (machineHandlers) listPorts(ctx context.Context, c *call) error {
	ports, err := c.findPorts(ctx)
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, portList{ports})
}

func (machineHandlers) checkPort(ctx context.Context, c *call) error {
	port, err := c.pathPort()
	if err != nil {
		return err
	}
	ports, err := c.findPorts(ctx)
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, map[string]bool{"isInUse": slices.Contains(ports, port)})
}

// pathPort returns the port in the path. Earlier clients write it as a decimal fraction.
func (c *call) pathPort() (int, error) {
	text := c.r.PathValue("port")
	n, err := strconv.ParseFloat(text, 64)
	if port := int(n); err == nil && n >= 1 && n <= 65535 && float64(port) == n {
		return port, nil
	}
	return 0, sandpit.Errorf(sandpit.Invalid, "port %.20q: want 1 to 65535", text)
}

// findPorts returns the TCP ports at which programs of the sandbox listen, in order.
func (c *call) findPorts(ctx context.Context) ([]int, error) {
	result, err := c.runProgram(ctx, sandpit.Command{Args: []string{"cat", "/proc/net/tcp", "/proc/net/tcp6"}})
	if sandpit.CodeOf(err) == sandpit.NotFound {
		err = sandpit.Errorf(sandpit.Unsupported, "list the ports: the sandbox has no program cat")
	}
	if err != nil {
		return nil, err
	}
	return parseListening(result.Stdout), nil // a kernel without IPv6 has only the first file
}

// parseListening returns the ports of listening sockets in the format of /proc/net/tcp.
func parseListening(text string) []int {
	const local, state, listening = 1, 3, "0A"
	ports := []int{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) <= state || fields[state] != listening {
			continue
		}
		_, port, _ := strings.Cut(fields[local], ":")
		if raw, err := hex.DecodeString(port); err == nil && len(raw) == 2 {
			ports = append(ports, int(raw[0])<<8|int(raw[1]))
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// metrics is one measurement of a sandbox. Limits that do not exist are left out.
type metrics struct {
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
	CPUCount      int       `json:"cpuCount"`
	CPUUsed       float64   `json:"cpuUsedPct"` // percent of one processor
	MemTotal      int64     `json:"memTotal,omitempty"`
	MemUsed       int64     `json:"memUsed"` // bytes, with the file cache
	DiskTotal     int64     `json:"diskTotal,omitempty"`
	DiskUsed      int64     `json:"diskUsed"`
	DiskFree      int64     `json:"diskFree,omitempty"`
}

// measureInterval is the time over which the use of processors is measured.
const measureInterval = 100 * time.Millisecond

func getMetrics(ctx context.Context, c *call) error {
	first, err := c.server.o.Manager.Usage().Measure(ctx, c.id)
	if err != nil {
		return err
	}
	select {
	case <-time.After(measureInterval):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	last, err := c.server.o.Manager.Usage().Measure(ctx, c.id)
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, newMetrics(first, last))
}

func newMetrics(first, last sandpit.Stats) metrics {
	m := metrics{
		Timestamp: last.At.UTC(), TimestampUnix: last.At.Unix(), CPUCount: runtime.NumCPU(),
		MemTotal: last.Limits.Memory, MemUsed: last.Memory, DiskTotal: last.Limits.Disk, DiskUsed: last.Disk,
	}
	if last.Limits.CPUs > 0 {
		m.CPUCount = int(math.Ceil(last.Limits.CPUs))
	}
	if m.DiskTotal > 0 {
		m.DiskFree = max(m.DiskTotal-m.DiskUsed, 0)
	}
	if took := last.At.Sub(first.At); took > 0 && last.CPU > first.CPU {
		m.CPUUsed = math.Round(float64(last.CPU-first.CPU)/float64(took)*10_000) / 100
	}
	return m
}

// initialize accepts the token with which Daytona's own servers start the reports of a sandbox.
// A sandbox here has none, so the token is not kept.
func (machineHandlers) initialize(_ context.Context, c *call) error {
	var req struct {
		Token string `json:"token"`
	}
	if err := c.readBody(&req); err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, map[string]string{"message": "the toolbox needs no token; nothing was changed"})
}

// refuseComputerUse refuses calls on a desktop, as Daytona does without its desktop programs.
func (machineHandlers) refuseComputerUse(context.Context, *call) error {
	return withStatus(sandpit.Errorf(sandpit.Unsupported, "computer use is not available: sandboxes have no desktop"), http.StatusServiceUnavailable, "")
}
