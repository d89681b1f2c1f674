package cli

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent"
)

// readServers returns the MCP servers of --mcp-config, with those of --mcp-host on this machine.
func (o *agentCommand) readServers() (map[string]agent.MCPServer, error) {
	if o.servers == "" {
		if len(o.onHost) > 0 {
			return nil, sandpit.Errorf(sandpit.Invalid, "--mcp-host %s: there is no such server without --mcp-config", o.onHost[0])
		}
		return nil, nil
	}
	data, err := o.readServersFile()
	if err != nil {
		return nil, err
	}
	servers, err := agent.ParseMCPServers(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.servers, err)
	}
	for _, name := range o.onHost {
		server, known := servers[name]
		if !known {
			return nil, sandpit.Errorf(sandpit.Invalid, "--mcp-host %.100q: %s has no such server", name, o.servers)
		}
		server.OnHost = true
		servers[name] = server
	}
	return servers, nil
}

// readServersFile reads the file of --mcp-config. With --mcp-host it must be trusted, because it names
// programs for this machine.
func (o *agentCommand) readServersFile() ([]byte, error) {
	f, err := os.OpenFile(o.servers, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "%w", err)
	}
	defer f.Close()
	if len(o.onHost) > 0 {
		if err := o.checkTrusted(f); err != nil {
			return nil, sandpit.WithHint(fmt.Errorf("--mcp-host: %w", err), "use a file that only you can change, and that no sandbox has")
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, maxServersFile))
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "%w", err)
	}
	return data, nil
}

// maxServersFile is more than a list of servers may have, in bytes.
const maxServersFile = 2 << 20

// checkTrusted returns a PermissionDenied error if another user, or a sandbox with a directory of this
// machine, could have written an open file.
func (o *agentCommand) checkTrusted(f *os.File) error {
	name, err := filepath.EvalSymlinks(f.Name())
	if err == nil {
		name, err = filepath.Abs(name)
	}
	if err != nil {
		return sandpit.Errorf(sandpit.Invalid, "%w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return sandpit.Errorf(sandpit.Invalid, "%w", err)
	}
	dir, err := os.Stat(filepath.Dir(name))
	if err != nil {
		return sandpit.Errorf(sandpit.Invalid, "%w", err)
	}
	if !info.Mode().IsRegular() || isOthers(info) || isOthers(dir) {
		return sandpit.Errorf(sandpit.PermissionDenied, "other users can change %s", name)
	}
	for _, volume := range o.volumes {
		mount, err := splitVolume(volume)
		if err != nil || mount.ReadOnly || mount.Volume != "" {
			continue // invalid ones are refused elsewhere
		}
		source, err := filepath.EvalSymlinks(mount.Source)
		if err == nil {
			source, err = filepath.Abs(source)
		}
		if err == nil && (source == name || strings.HasPrefix(name, strings.TrimSuffix(source, "/")+"/")) {
			return sandpit.Errorf(sandpit.PermissionDenied, "the sandbox can change %s, by -v %s", name, volume)
		}
	}
	return nil
}

// isOthers reports whether a user other than this one and root can change a file or the names in a
// directory. Names in a directory such as /tmp can be changed by the owners of the files alone.
func isOthers(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !slices.Contains([]uint32{0, uint32(os.Geteuid())}, stat.Uid) { //nolint:gosec // a user ID
		return true
	}
	sticky := info.IsDir() && info.Mode()&fs.ModeSticky != 0
	return info.Mode().Perm()&0o022 != 0 && !sticky
}
